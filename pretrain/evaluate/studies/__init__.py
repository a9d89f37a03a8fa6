"""Compare arms: their designs, statistics, tables and pictures; launch/studies/ runs them."""
