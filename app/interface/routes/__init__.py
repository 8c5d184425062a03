"""The endpoints, one file for each family; `app.http_api` puts them together."""
