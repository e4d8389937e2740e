"""Files of rows, read and written in bounded memory."""
