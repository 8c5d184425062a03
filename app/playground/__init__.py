"""The playground: a web page on which two models answer the same question, with every decoding of the service."""
