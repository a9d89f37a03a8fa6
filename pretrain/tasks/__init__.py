"""Define the tasks that encoders are scored on: read their files, build inputs, and score what models answer.

    base.py          what a task is, whether an encoder is fine-tuned on it or scored as it is
    registry.py      every task by its name, the suites of them, and the folders of their files
    settings.py      the settings of `maskmill evaluate`, and published recipes
    encoders.py      an encoder of any folder, and where and how precisely it is computed
    inputs.py        texts and words as an encoder's inputs, and these in batches
    heads.py         heads that transformers has no class for
    files.py         rows of files, and splits of examples
    class_names.py   the outputs of models that others fine-tuned, as the classes of a task's files
    metrics.py       the metrics

The other modules define the tasks, each those of one kind.
"""
