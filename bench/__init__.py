"""Speed, against other implementations; what is studied stands in lab/studies, developers' programs in tools."""
