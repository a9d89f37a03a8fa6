"""`maskmill push`: what leaves the machine, where to, and every way in which it does not."""

import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import transformers
from hub_server import OWNER, READ_ONLY, TOKEN, Hub, hub_server
from huggingface_hub import ModelCard

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings
from pretrain.export import hub as hub_module
from pretrain.export.card import Card
from pretrain.export.hub import BELONGS, PLACEHOLDER, exported_folders, gather, push
from pretrain.huggingface.bert import BERT_FOR_MASKED_LM
from pretrain.report.inspection import describe
from tests.command_line import Maskmill
from tests.factories.exports import Exporter

# the library's own upload of large files, which newer clients of HTTP deprecate
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = f"{OWNER}/tiny"
CARD = Card(
    {"Data": {"sources": "a.txt"}},
    languages=("en",),
    license="apache-2.0",
    step=10,
    scores={"held_out_mlm_loss": 5.0},
)


@pytest.fixture(scope="session")
def exported_once(tokenizer_json: str, examples: Examples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = EncoderSettings(layers=1, hidden=24, heads=2, intermediate=32, max_positions=48)
    out = tmp_path_factory.mktemp("push") / "model"
    Exporter(settings, tokenizer_json, examples, CARD).export(out)
    return out


@pytest.fixture
def model(exported_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_once, tmp_path / "model"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in that this process, and those it starts, take for the hub; the user is logged in."""
    with hub_server() as server:
        reach(server.url, monkeypatch)
        log_in(monkeypatch, TOKEN)
        yield server


def reach(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv(
        "HF_HUB_DISABLE_XET", "1"
    )  # large files through plain HTTP: xet has a server of its own
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)


def log_in(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HF_TOKEN_PATH", "/nowhere/token")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nowhere/token")


def send(model: Path, repo: str = REPO, private: bool = False) -> hub_module.Pushed:
    return push(gather(model, repo), repo, private)


def test_a_push_is_one_commit_of_the_export(
    hub: Hub, model: Path, tmp_path: Path, maskmill: Maskmill
) -> None:
    for name in ("optimizer.safetensors", "token", ".env", "rank-0.log", "training_args.bin"):
        (model / name).write_text("secret")
    said = maskmill("push", str(model), REPO, process=True).stdout
    assert f"pushed {hub.url}/{REPO}" in " ".join(said.split())
    assert (
        "left out, no part of an export: .env, optimizer.safetensors, rank-0.log, token, training_args.bin"
        in said
    )
    repository = hub.repositories[REPO]
    assert len(repository.commits) == 1
    assert not repository.private
    assert set(repository.files) == {p.name for p in model.iterdir()} & BELONGS
    assert repository.files["model.safetensors"] == (model / "model.safetensors").read_bytes()
    assert TOKEN not in said
    assert not any(TOKEN.encode() in content for content in repository.files.values())

    copy = (
        tmp_path / "downloaded"
    )  # what is there is an export again, and its card's snippets name the repository
    copy.mkdir()
    for name, content in repository.files.items():
        (copy / name).write_bytes(content)
    assert set(gather(copy, REPO).files) == set(repository.files)
    card = ModelCard.load(copy / "README.md")
    assert card.data.license == "apache-2.0"
    assert f'model="{REPO}"' in card.text
    assert PLACEHOLDER not in card.text
    transformers.BertForPreTraining.from_pretrained(copy)


def test_again_changes_nothing(hub: Hub, model: Path) -> None:
    first = send(model)
    again = send(model)
    assert first.new
    assert not again.new
    assert again.commit == first.commit == hub.repositories[REPO].sha
    assert len(hub.repositories[REPO].commits) == 1


def test_a_card_that_people_wrote_on_goes_as_it_is(hub: Hub, model: Path, tmp_path: Path) -> None:
    card = model / "README.md"
    card.write_text(card.read_text("utf-8") + "\nThanks to everyone.\n", "utf-8")
    assert gather(model, REPO).edited
    assert describe(model)["hashes"] == "all hold, but for README.md, which was edited"
    send(model)
    sent = hub.repositories[REPO].files
    assert b"Thanks to everyone." in sent["README.md"]
    copy = tmp_path / "downloaded"
    copy.mkdir()
    for name, content in sent.items():
        (copy / name).write_bytes(content)
    assert not gather(copy, REPO).edited  # its hash was renewed on the way


def test_the_owner_may_be_left_to_the_hub(hub: Hub, model: Path) -> None:
    assert send(model, "tiny").url == f"{hub.url}/{REPO}"


def test_private_stays_private(hub: Hub, model: Path) -> None:
    send(model, private=True)
    assert hub.repositories[REPO].private
    send(model, private=True)
    send(model, f"{OWNER}/open")
    before = dict(hub.repositories[f"{OWNER}/open"].files)
    (model / "README.md").write_text("---\nlicense: mit\n---\nconfidential", "utf-8")
    with pytest.raises(UserError, match="exists and is public"):
        send(model, f"{OWNER}/open", private=True)
    assert hub.repositories[f"{OWNER}/open"].files == before


def test_a_dry_run_sends_nothing(hub: Hub, model: Path, maskmill: Maskmill) -> None:
    said = maskmill("push", str(model), REPO, "--dry-run", "--private").stdout
    assert f"would send {len(gather(model, REPO).files)} files to {REPO} (private)" in said
    assert f"{(model / 'model.safetensors').stat().st_size:,} bytes  model.safetensors" in said
    assert hub.calls == []


@pytest.mark.parametrize(
    ("token", "says"),
    [("hf_unknown", "does not accept the token .*hf auth login"), (READ_ONLY, "may not write there")],
)
def test_tokens_that_do_not_do(
    token: str, says: str, hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, token)
    with pytest.raises(UserError, match=says) as error:
        send(model)
    assert token not in str(error.value)
    assert hub.repositories == {}


def test_without_a_token_nothing_is_asked(hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match=r"no token .*hf auth login, or a token .* in HF_TOKEN"):
        send(model)
    assert hub.calls == []


def test_offline_mode(hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch, maskmill: Maskmill) -> None:
    """The library's own: a real process, in which no request may leave. A dry run needs none."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = maskmill("push", str(model), REPO, code=2, process=True)
    assert (
        result.stderr
        == "maskmill: push: the hub is switched off by HF_HUB_OFFLINE (unset it, or --dry-run)\n"
    )
    assert "would send" in maskmill("push", str(model), REPO, "--dry-run").stdout
    assert hub.calls == []


def test_a_hub_that_is_not_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        reach(f"http://user:secret@127.0.0.1:{free.getsockname()[1]}", monkeypatch)
    log_in(monkeypatch, TOKEN)
    with pytest.raises(UserError, match="check the network") as error:
        send(model)
    assert "secret" not in str(error.value)


def test_a_hub_that_never_answers_is_given_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def keep_waiting(listening: socket.socket) -> None:
        taken, _ = listening.accept()
        over.wait(15)
        taken.close()  # in the end, so that this test fails rather than hangs where there is no limit
        listening.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        waiter = threading.Thread(target=keep_waiting, args=(listening,), daemon=True)
        waiter.start()
        reach(f"http://127.0.0.1:{listening.getsockname()[1]}", monkeypatch)
        log_in(monkeypatch, TOKEN)
        monkeypatch.setattr(hub_module, "TIMEOUT", (0.5, 0.5, 0.5, 0.5))
        with pytest.raises(UserError, match="ReadTimeout"):
            send(model)
        over.set()
        waiter.join()


def test_a_card_that_the_hub_refuses(hub: Hub, model: Path) -> None:
    hub.refuses_cards = True
    with pytest.raises(UserError, match=r'the hub answers 400: "language" must be ISO 639'):
        send(model)
    assert hub.repositories[REPO].commits == []


@pytest.mark.parametrize("name", ["a/b/c", ".x", "some--thing", "name.git", "", "with space"])
def test_names_that_cannot_be(name: str, model: Path, maskmill: Maskmill) -> None:
    said = maskmill("push", str(model), name, "--dry-run", code=2).stderr
    assert said.startswith("maskmill: REPO: ")
    assert said.count("\n") == 1


def spoil(folder: Path, change: str) -> str:
    """What the line has to say."""
    note = folder / "maskmill.json"
    values = json.loads(note.read_text())
    if change == "weights":
        weights = folder / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        return "model.safetensors: is missing or its bytes changed since the export"
    if change == "missing":
        (folder / "config.json").unlink()
        return "config.json: is missing or its bytes changed"
    if change == "no note":
        note.unlink()
        return "not an exported model"
    if change == "not JSON":
        note.write_text("{")
        return "maskmill.json: cannot be read: Expecting property name"
    if change == "no proof":
        del values["proof"]
    elif change == "failed proof":
        values["proof"]["mlm"]["difference"] = 1.0
    elif change == "NaN":
        values["proof"]["mlm"]["difference"] = float("nan")
    elif change == "something else":
        (folder / "id_rsa").write_text("secret")
        values["sha256"]["id_rsa"] = hashlib.sha256(b"secret").hexdigest()
    elif change == "outside":
        values["sha256"]["../other"] = "0" * 64
    elif change == "no weights":
        del values["sha256"]["model.safetensors"]
    note.write_text(json.dumps(values))
    return {
        "something else": "names 'id_rsa', which is no part of an export",
        "outside": "names '../other', which is no part of an export",
        "no weights": "has no hash of model.safetensors",
    }.get(change, "no proof of equal logits")


@pytest.mark.parametrize(
    "change",
    [
        *("weights", "missing", "no note", "not JSON", "no proof", "failed proof", "NaN"),
        *("something else", "outside", "no weights"),
    ],
)
def test_what_is_no_whole_export_is_not_sent(change: str, hub: Hub, model: Path) -> None:
    said = spoil(model, change)
    if change in ("weights", "missing"):
        with pytest.raises(UserError):
            describe(model)
    with pytest.raises(UserError) as error:
        send(model)
    assert said in str(error.value)
    assert hub.calls == []


def test_each_of_several_models_goes_to_a_repository_of_its_own(
    hub: Hub, model: Path, tmp_path: Path, maskmill: Maskmill
) -> None:
    both = tmp_path / "both"
    for name in ("one", "two"):
        shutil.copytree(model, both / name)
    said = maskmill("push", str(both), REPO).stdout
    assert all(f"{hub.url}/{REPO}-{name} " in " ".join(said.split()) for name in ("one", "two"))
    assert set(hub.repositories) == {f"{REPO}-one", f"{REPO}-two"}
    assert f'model="{REPO}-two"' in hub.repositories[f"{REPO}-two"].files["README.md"].decode()
    (both / "two" / "model.safetensors").write_bytes(b"")
    before = dict(hub.repositories[f"{REPO}-one"].files)
    (both / "one" / "README.md").write_text("---\nlicense: mit\n---\nnew", "utf-8")
    maskmill("push", str(both), REPO, code=2)
    assert hub.repositories[f"{REPO}-one"].files == before, "all are checked before any is sent"


def test_a_run_stands_for_its_export(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no export yet \(maskmill export "):
        exported_folders(run)
    model.rename(run / "export")
    assert exported_folders(run) == exported_folders(run / "export") == [run / "export"]


def test_an_export_that_the_run_has_left_behind_is_told(
    model: Path, tmp_path: Path, maskmill: Maskmill
) -> None:
    run = tmp_path / "run"
    for name in ("step-00000005", "step-00000010", "step-00000015.damaged"):
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / "checkpoint.json").write_text("{}")
    (run / "run.json").write_text("{}")
    model.rename(run / "export")
    said = maskmill("push", str(run), REPO, "--dry-run").stdout
    assert "renews it" not in said
    (run / "checkpoints" / "step-00000015.damaged").rename(run / "checkpoints" / "step-00000020")
    assert (
        f"the export is of step 10, the run is at 20: maskmill export {run} renews it"
        in maskmill("push", str(run), REPO, "--dry-run").stdout
    )


def test_licenses_that_the_hub_does_not_know() -> None:
    head = hub_module.front_matter("m", (), "Our own 1.0", {}, BERT_FOR_MASKED_LM)
    data = ModelCard(f"{head}\n# m\n").data
    assert (data.license, data.license_name) == ("other", "our-own-1.0")
    assert "license" not in hub_module.front_matter("m", (), "", {}, BERT_FOR_MASKED_LM)
