"""Further parts of random modules: what guards reach by comprehensions, builtins, types and keys by their place."""

from __future__ import annotations

from tests.behaviour.changing_parts import Part

LOOKUPS = {
    "comprehensions": Part(
        forward="""
            if False in self.layers_N.sliding:
                x = x + self.layers_N.sliding.index(False)
            x = x * 2 if self.layers_N.all_slide else x + len(self.layers_N.sliding)
            x = x * 3 if self.layers_N.any_slides else x""",
        changes="""self.layers_N.every[0].slides = draw.choice((True, False)) | del self.layers_N.every[0].slides
            Layer_N.slides = draw.choice((True, False)) | self.layers_N.every.append(Layer_N()) | self.layers_N.every.pop()
            self.layers_N.every[1] = Layer_N() | self.layers_N.every = list(self.layers_N.every) | self.layers_N = Layers_N()
            self.layers_N.every.reverse() | self.layers_N.every[0].__class__ = type('Other', (Layer_N,), {'slides': True})
            all = lambda values: False | globals().pop('all', None) | self.layers_N.every = tuple(self.layers_N.every)
            Layers_N.all_slide.__init__(lambda self: True) | Layers_N.sliding = property(lambda self: [True])
            Layers_N.sliding.fget.__code__ = (lambda self: [False, False]).__code__""",
        above="""
            class Layer_N:
                slides = False
            class Layers_N:
                def __init__(self):
                    self.every = [Layer_N(), Layer_N()]
                @property
                def sliding(self):
                    return [getattr(each, 'slides', True) for each in self.every]
                @property
                def all_slide(self):
                    if len(self.every) == 0:
                        return False
                    return all(each.slides for each in self.every)
                @property
                def any_slides(self):
                    return any(each.slides for each in self.every)""",
        init="self.layers_N = Layers_N()",
    ),
    "types and keys": Part(
        forward="""
            for key, kind in KINDS_N.items():
                x = x * 2 if kind is type(self.layer_N) else x + 1
            x = x + 3 if type(self.layer_N) is type(self.other_N) else x""",
        changes="""self.layer_N.__class__ = One_N | self.layer_N.__class__ = Two_N | self.layer_N = Two_N()
            self.other_N = Two_N()
            KINDS_N['a'] = draw.choice((One_N, Two_N)) | KINDS_N['a'] = KINDS_N.pop('a') | KINDS_N['c'] = One_N
            KINDS_N.pop('c', None) | KINDS_N = Kinds_N(b=Two_N, a=One_N) | KINDS_N = Kinds_N(a=One_N, b=Two_N)
            KINDS_N[type('Key', (str,), {'__eq__': lambda self, other: True, '__hash__': str.__hash__})('a')] = Two_N""",
        above="""
            class One_N: pass
            class Two_N: pass
            class Kinds_N(dict): pass
            KINDS_N = Kinds_N(a=One_N, b=Two_N)""",
        init="self.layer_N, self.other_N = One_N(), Two_N()",
    ),
    "a number that is compared": Part(
        forward="x = x * 2 if self.scaled_N.is_half else x + self.scaled_N.rest",
        changes="""self.scaled_N.scale = draw.choice((0.5, 1.5)) + 0.0 | self.scaled_N.scale = draw.random()
            self.scaled_N.scale = sum([0.25, 0.25]) | self.scaled_N.offset = draw.choice((1000, 2000)) + 1""",
        above="""
            class Scaled_N:
                def __init__(self):
                    self.scale, self.offset = 0.5, 1001
                @property
                def is_half(self):
                    return self.scale == 0.5
                @property
                def rest(self):
                    if self.offset == 1001:
                        return 1
                    return 2""",
        init="self.scaled_N = Scaled_N()",
    ),
}
"""By what they read."""
