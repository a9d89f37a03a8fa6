"""Compare arms of studies: designs, measured figures, statistics, tables and pictures; launch/studies/ runs them."""
