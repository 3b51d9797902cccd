"""A model as an HTTP service in the form of OpenAI's API, for programs that speak it already."""
