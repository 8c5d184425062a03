"""The endpoints, one file for each family; `app.interface.http_api` puts them together."""
