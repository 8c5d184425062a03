"""Documents as passages: cut, kept as bytes, and searched. Knows neither users, HTTP nor how vectors are computed."""
