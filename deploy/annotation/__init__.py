"""The annotation service: HTTP API, the annotators' page and the lead's page over `pddpo_ray.annotation`.

`app.create_app` makes an ASGI application; `pddpo annotate --run DIR` serves it, and Ray Serve can mount it.
"""
