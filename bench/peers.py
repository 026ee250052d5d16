def figures(*_):
    return []
