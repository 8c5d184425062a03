"""The playground: a page on which two models answer the same question, with every decoding that the service has."""
