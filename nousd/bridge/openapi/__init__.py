"""The OpenAPI document, generated from the route table."""
