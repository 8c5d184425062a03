"""The endpoints, one file a family; `app.interface.http_api` registers them."""
