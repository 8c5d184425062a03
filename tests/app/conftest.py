from hypothesis import settings

# A shared machine may be busy: how long an example takes says nothing.
settings.register_profile("app", deadline=None)
settings.load_profile("app")
