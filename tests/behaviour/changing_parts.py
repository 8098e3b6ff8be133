"""Parts of random programs: what a module may read by any rule of Python's, and statements that change it.

`_N` in names becomes the number of a part, and `draw` is a random.Random."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Statements of a forward of `x`, 3×4 numbers, and others that change what these read, with | between them; statements
    above the class, of its `__init__`, and what undoes changes outside of the program."""

    forward: str
    changes: str
    above: str = ""
    init: str = ""
    undo: str = ""


def constant(*values: str) -> Part:
    """A global that is one of these constants."""
    changes = " | ".join(f"G_N = {value}" for value in values)
    return Part(f"x = x + 1 if G_N == {values[0]} else x * 2", changes, f"G_N = {values[0]}")


PARTS: dict[str, Part] = {
    "a string": constant("'a'", "'b'", "None", "'a' + 'b'"),
    "a number": constant("1", "2", "1.0", "True", "float('nan')", "1000 + 1", "1j", "b'1'"),
    "a type or device": constant(
        "torch.float32", "torch.float64", "torch.device('cpu')", "torch.Size([1])", "int", "range(3)",
    ),
    "frozen sets": constant("frozenset({1})", "frozenset({2})", "(1, (2, 3))", "(1, (2, 4))", "slice(1)", "{1}"),
    "a factor": Part("x = x * G_N", "G_N = 2.0 | G_N = 3 | G_N = float('nan') | G_N = True", "G_N = 2.0"),
    "nested dictionaries": Part(
        forward="x = x + G_N['a']['b'][0]",
        changes="""G_N['a']['b'][0] = draw.choice((1, 2, 1.5)) | G_N['a']['b'] = [1, 2] | G_N['a'] = {'b': [1]}
            G_N['a'].update(c=draw.random()) | G_N = copy.deepcopy(G_N) | G_N['a']['b'] = (1,)
            G_N['a']['b'].append(3) | del G_N['a']['c'] | G_N = collections.OrderedDict(G_N)
            G_N['a'] = collections.defaultdict(list, G_N['a'])""",
        above="G_N = {'a': {'b': [1]}}",
    ),
    "items in order": Part(
        forward="""
            for k, v in model_table_N.items():
                x = x * v if k == 'a' else x + v""",
        changes="""model_table_N['a'] = model_table_N.pop('a') | model_table_N['b'] = draw.choice((1, 2))
            model_table_N['c'] = 1 | model_table_N.pop('c') | model_table_N.move_to_end('a')
            model_table_N = collections.OrderedDict(model_table_N) | model_table_N = dict(model_table_N)
            model_table_N.clear() | model_table_N.update(a=1, b=2)""",
        above="model_table_N = {'a': 1, 'b': 2}",
    ),
    "whether keys are there": Part(
        forward="x = x + 1 if 'a' in self.table_N else x * 2",
        changes="""self.table_N['a'] = 1 | self.table_N.pop('a') | self.table_N = {'a': 1} | self.table_N = {}
            self.table_N = set('a')""",
        init="self.table_N = {'a': 0}",
    ),
    "lists": Part(
        forward="""
            for each in self.list_N:
                x = x + each""",
        changes="""self.list_N.append(draw.choice((1, 2))) | self.list_N.pop() | self.list_N = [1, 2]
            self.list_N = (1, 2) | self.list_N[0] = draw.choice((1, 2.5)) | self.list_N = collections.deque([1, 2])
            self.list_N.reverse() | self.list_N = type('L', (list,), {})([1, 2]) | self.list_N = torch.Size([1, 2])""",
        init="self.list_N = [1, 2]",
    ),
    "a dataclass": Part(
        forward="x = x * self.config_N.width + (1 if self.config_N.name == 'a' else 0)",
        changes="""self.config_N.width = draw.choice((2, 3, 2.5)) | self.config_N.name = draw.choice('ab')
            Config_N.name = 'b' | self.config_N = Config_N(draw.choice((2, 3)))
            self.config_N.__dict__ = {'width': 2, 'name': 'a'} | self.config_N = copy.deepcopy(self.config_N)
            del self.config_N.name | del self.config_N; self.config_N = Config_N()
            self.config_N.__class__ = type('Other', (Config_N,), {'name': 'b'})
            Config_N.width = property(lambda self: 5)
            self.config_N = pickle.loads(pickle.dumps(types.SimpleNamespace(width=2, name='a')))
            del Config_N.width""",
        above="""
            @dataclasses.dataclass
            class Config_N:
                width: int = 2
                name: str = 'a'""",
        init="self.config_N = Config_N()",
    ),
    "slots": Part(
        forward="x = x * self.slots_N.a",
        changes="""self.slots_N.a = draw.choice((1, 2, 'a')) | del self.slots_N.a | self.slots_N = Slots_N()
            self.slots_N.b = 3 | Slots_N.a_before, Slots_N.a = Slots_N.a, 3 | Slots_N.a = Slots_N.a_before""",
        above="""
            class Slots_N:
                __slots__ = ('a', 'b')
                def __init__(self):
                    self.a = 2""",
        init="self.slots_N = Slots_N()",
    ),
    "a property": Part(
        forward="x = x * 2 if self.owner_N.chosen else x + self.owner_N.value",
        changes="""self.owner_N._chosen = draw.choice((True, False)) | self.owner_N._value = draw.choice((1, 2))
            Owner_N.value = 5 | Owner_N.value = property(lambda self: 6) | Owner_N.default = draw.choice((0, 1))
            self.owner_N = Owner_N() | Owner_N.chosen.fget.__code__ = (lambda self: not self._chosen).__code__
            self.owner_N.table['a'] = draw.choice((1, 2)) | Owner_N.chosen.__init__(lambda self: False)
            Owner_N.chosen.__init__(lambda self: True)""",
        above="""
            class Owner_N:
                default = 0
                def __init__(self):
                    self._chosen, self._value, self.table = True, 1, {'a': 1}
                @property
                def chosen(self):
                    if self._chosen and self.table.get('a') == 1:
                        return True
                    return self.default == 1
                @property
                def value(self):
                    return self._value or self.default""",
        init="self.owner_N = Owner_N()",
    ),
    "computed attributes": Part(
        forward="x = x * self.owner_N.total + self.owner_N.twice[0] + len(self.owner_N.once)",
        changes="""self.owner_N.values[0] = draw.choice((1, 2)) | self.owner_N.values.append(1)
            self.owner_N.values = [1, 2] | self.owner_N.__dict__.pop('once') | self.owner_N.once = (1, 2)
            self.owner_N.raises = draw.choice((True, False))""",
        above="""
            class Owner_N:
                raises = False
                def __init__(self):
                    self.values, self.seen = [1, 2], 0
                @property
                def total(self):
                    if self.raises:
                        raise AttributeError('total')
                    return sum(self.values)
                @property
                def twice(self):
                    return [2 * each for each in self.values]
                @functools.cached_property
                def once(self):
                    return tuple(self.values)""",
        init="self.owner_N = Owner_N()",
    ),
    "attributes with effects": Part(
        forward="x = x * FLAG_N['a'] if OWNER_N.lazy else x + FLAG_N['a']",
        changes="""FLAG_N['a'] = 1 | FLAG_N['a'] = 2 | OWNER_N.made = None | OWNER_N.made = 0""",
        above="""
            FLAG_N = {'a': 1}
            class Owner_N:
                __slots__ = ('made',)
                def __init__(self):
                    self.made = None
                @property
                def lazy(self):
                    if self.made is None:
                        self.made, FLAG_N['a'] = 1, 2
                    return self.made
            OWNER_N = Owner_N()""",
    ),
    "__getattr__": Part(
        forward="x = x * self.owner_N.width",
        changes="""self.owner_N.names['width'] = draw.choice((2, 3)) | self.owner_N.width = 4 | del self.owner_N.width
            Owner_N.width = 5 | del Owner_N.width | Owner_N.__getattr__ = lambda self, name: 6
            self.owner_N = Owner_N()""",
        above="""
            class Owner_N:
                def __init__(self):
                    self.names = {'width': 2}
                def __getattr__(self, name):
                    if name.startswith('__'):
                        raise AttributeError(name)
                    return self.names[name]""",
        init="self.owner_N = Owner_N()",
    ),
    "__getattribute__": Part(
        forward="x = x * self.owner_N.width",
        changes="""self.owner_N.size = draw.choice((2, 3)) | Owner_N.names['width'] = draw.choice(('size', 'other'))
            Owner_N.names.pop('width') | self.owner_N.width = 5 | Owner_N.names = {'width': 'other'}
            self.owner_N = Owner_N()
            Owner_N.__getattribute__ = lambda self, name: object.__getattribute__(self, 'other' if name == 'width' else name)""",
        above="""
            class Owner_N:
                names = {'width': 'size'}
                def __init__(self):
                    self.size, self.other = 2, 3
                def __getattribute__(self, name):
                    if name != 'names' and name in super().__getattribute__('names'):
                        name = super().__getattribute__('names')[name]
                    return super().__getattribute__(name)""",
        init="self.owner_N = Owner_N()",
    ),
    "descriptors": Part(
        forward="x = x * self.owner_N.data + self.owner_N.shadowed + self.owner_N.named",
        changes="""self.owner_N.store = draw.choice((2, 3)) | self.owner_N.__dict__['data'] = 7
            self.owner_N.__dict__['shadowed'] = 8 | self.owner_N.__dict__.pop('shadowed')
            Reads_N.__get__ = lambda self, owner, kind: 9 | Plain_N.__get__ = lambda self, owner, kind: 10
            Plain_N.__set__ = lambda self, owner, value: None | del Plain_N.__set__ | del Plain_N.__get__
            Owner_N.named = draw.choice((1, 2)) | vars(Owner_N)['shadowed'].value = 3""",
        above="""
            class Plain_N:
                value = 1
                def __radd__(self, other):
                    return other + self.value
            class Reads_N:
                def __get__(self, owner, kind):
                    return owner.store
                def __set__(self, owner, value):
                    raise AttributeError('data')
            class Owner_N:
                data, shadowed, named = Reads_N(), Plain_N(), 1
                def __init__(self):
                    self.store = 2
                    self.__dict__['shadowed'] = 1""",
        init="self.owner_N = Owner_N()",
    ),
    "methods of an object": Part(
        forward="""
            x = x * 2 if self.owner_N else x
            x = x + len(self.owner_N) + (1 if 'a' in self.owner_N else 0) + self.owner_N(1)""",
        changes="""Owner_N.__bool__ = lambda self: False | Owner_N.__len__ = lambda self: 4
            self.owner_N.count = draw.choice((1, 2)) | Owner_N.__contains__ = lambda self, key: False
            Owner_N.__call__ = lambda self, by: by * 3 | self.owner_N = Owner_N()""",
        above="""
            class Owner_N:
                def __init__(self):
                    self.count = 1
                def __len__(self):
                    return self.count
                def __contains__(self, key):
                    return key == 'a'
                def __call__(self, by):
                    return by * self.count""",
        init="self.owner_N = Owner_N()",
    ),
    "an enumeration": Part(
        forward="x = x + 1 if self.colour_N == Colour_N.RED else x * self.colour_N.value",
        changes="""self.colour_N = draw.choice(list(Colour_N)) | self.colour_N = Other_N.RED
            Colour_N.RED._value_ = draw.choice((1, 3)) | self.colour_N = 'red'
            Colour_N.__eq__ = lambda self, other: False | del Colour_N.__eq__""",
        above="""
            class Colour_N(enum.Enum):
                RED = 1
                BLUE = 2
            class Other_N(enum.IntEnum):
                RED = 1""",
        init="self.colour_N = Colour_N.RED",
    ),
    "whether it is an instance": Part(
        forward="""
            x = x + 1 if isinstance(self.owner_N, Base_N) else x * 2
            x = x + 1 if isinstance(self.owner_N, Sized_N) else x""",
        changes="""self.owner_N = Base_N() | self.owner_N = Other_N() | self.owner_N.__class__ = Other_N
            Sized_N.register(Other_N) | self.owner_N.__class__ = Derived_N | Derived_N.__bases__ = (Middle_N,)
            Derived_N.__bases__ = (Base_N,)""",
        above="""
            class Base_N:
                def go(self):
                    return 1
            class Middle_N(Base_N):
                def go(self):
                    return 2
            class Derived_N(Base_N): pass
            class Other_N:
                def go(self):
                    return 3
            class Sized_N(abc.ABC): pass""",
        init="self.owner_N = Derived_N()",
    ),
    "whether it has an attribute": Part(
        forward="""
            x = x + 1 if hasattr(self, 'extra_N') else x * 2
            x = x + getattr(self.space_N, 'extra', 3)""",
        changes="""self.extra_N = 1 | del self.extra_N | type(self).extra_N = 2 | del type(self).extra_N
            self.space_N.extra = 4 | del self.space_N.extra | self.space_N = types.SimpleNamespace()
            self.register_buffer('extra_N', torch.ones(4))""",
        init="self.space_N = types.SimpleNamespace()",
    ),
    "a class": Part(
        forward="x = x * Kind_N.a + Kind_N.b + Kind_N.c",
        changes="""Kind_N.a = draw.choice((2, 3)) | Base_N.b = draw.choice((1, 2)) | Meta_N.c = property(lambda kind: 4)
            Meta_N.c = 3 | Meta_N.a = property(lambda kind: 7) | del Meta_N.a
            Kind_N = type('Kind', (Base_N,), {'a': 2, 'c': 1})
            Kind_N.__class__ = type('OtherMeta', (Meta_N,), {'c': 6})""",
        above="""
            class Meta_N(type):
                @property
                def c(kind):
                    return 1
            class Base_N(metaclass=Meta_N):
                b = 1
            class Kind_N(Base_N):
                a = 2""",
    ),
    "a function": Part(
        forward="x = by_N(x)",
        changes="""by_N.__defaults__ = (draw.choice((2, 3)),) | by_N.__kwdefaults__ = {'shift': draw.choice((1, 2))}
            by_N.__kwdefaults__['shift'] = 5 | by_N.__code__ = (lambda x, factor=2, *, shift=1: x - factor).__code__
            by_N = lambda x: x + 5 | by_N.__kwdefaults__ = None | by_N.factor = 3""",
        above="""
            def by_N(x, factor=2, *, shift=1):
                return x * factor + shift""",
    ),
    "a closure": Part(
        forward="""
            x = made_N(x)
            x = x + self.inner_N(1)""",
        changes="""set_N(draw.choice((2, 3, 2.5))) | set_N('a') | made_N, set_N = make_N(draw.choice((2, 3)))
            self.inner_N = make_N(draw.choice((1, 2)))[0] | made_N.__closure__[0].cell_contents = 4
            del made_N.__closure__[0].cell_contents | self.inner_N.__code__ = make_N(1)[0].__code__""",
        above="""
            def make_N(factor):
                def made(x):
                    return x * factor
                def set(value):
                    nonlocal factor
                    factor = value
                return made, set
            made_N, set_N = make_N(2)""",
        init="self.inner_N = make_N(1)[0]",
    ),
    "methods of a module": Part(
        forward="x = self.step_N(x) + self.fixed_N(1) + self.of_class_N()",
        changes="""type(self).step_N = lambda self, x: x + 3 | self.step_N = lambda x: x + 4 | del self.step_N
            type(self).fixed_N = staticmethod(lambda x: 5) | type(self).of_class_N = classmethod(lambda kind: 6)
            self.step_N = types.MethodType(lambda self, x: x * self.scale_N, self)
            self.scale_N = draw.choice((2, 3))""",
        above="""
            class Steps_N:
                def step_N(self, x):
                    return x * self.scale_N
                @staticmethod
                def fixed_N(x):
                    return x
                @classmethod
                def of_class_N(kind):
                    return 1""",
        init="""
            type(self).__bases__ += (Steps_N,) if Steps_N not in type(self).__bases__ else ()
            self.scale_N = 2""",
    ),
    "a partial function": Part(
        forward="x = self.partial_N(x)",
        changes="""self.partial_N = functools.partial(torch.mul, other=draw.choice((2, 3)))
            self.partial_N.keywords['other'] = 4 | self.partial_N = functools.partial(torch.add, other=1)""",
        init="self.partial_N = functools.partial(torch.mul, other=2)",
    ),
    "builtins": Part(
        forward="x = x + len(self.list_N) + abs(-1)",
        changes="""len = lambda of: 7 | del len | abs = lambda of: 8 | del abs | builtins.len_N = 1 | self.list_N.append(0)""",
        init="self.list_N = [1]",
        undo="vars(builtins).pop('len_N', None)",
    ),
    "another module": Part(
        forward="x = x * other_N.value + (1 if hasattr(other_N, 'extra') else 2)",
        changes="""other_N.value = draw.choice((2, 3)) | other_N.extra = 1 | del other_N.extra
            other_N.__getattr__ = lambda name: 3 | other_N = types.ModuleType('other_N'); other_N.value = 2
            other_N.__class__ = type('M', (types.ModuleType,), {'extra': 1})""",
        above="""
            other_N = types.ModuleType('other_N')
            other_N.value = 2""",
    ),
    "a name": Part(
        forward="x = x * getattr(self.space_N, NAME_N)",
        changes="""NAME_N = draw.choice(('a', 'b')) | self.space_N.a = draw.choice((2, 3)) | self.space_N.b = 5
            vars(self.space_N).clear()""",
        above="NAME_N = 'a'",
        init="self.space_N = types.SimpleNamespace(a=2, b=3)",
    ),
    "layers": Part(
        forward="""
            for layer in self.layers_N:
                x = layer(x)""",
        changes="""self.layers_N[0] = nn.Linear(4, 4, bias=False) | self.layers_N[1] = nn.Identity()
            self.layers_N.append(nn.ReLU()) | del self.layers_N[-1]
            self.layers_N = nn.ModuleList(list(self.layers_N)) | self.layers_N = copy.deepcopy(self.layers_N)
            self.layers_N[0].__class__ = Own_N | self.layers_N[0].forward = lambda x: x
            del self.layers_N[0].forward
            self.layers_N = pickle.loads(pickle.dumps(nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])))
            self.layers_N[0].bias = None | vars(self.layers_N[0])['_modules'] = collections.OrderedDict()
            self.layers_N[0].__dict__ = dict(vars(self.layers_N[0]))""",
        above="""
            class Own_N(nn.Linear):
                def forward(self, x):
                    return super().forward(x) * 2""",
        init="self.layers_N = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])",
    ),
    "a dictionary of modules": Part(
        forward="""
            for name, layer in self.named_N.items():
                x = layer(x) if name != 'skip' else x""",
        changes="""self.named_N['skip'] = nn.Tanh() | self.named_N['a'] = nn.Tanh() | self.named_N.pop('skip')
            self.named_N.clear() | self.named_N['a'] = self.named_N.pop('a') | self.named_N['b'] = nn.Identity()""",
        init="self.named_N = nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.ReLU()})",
    ),
    "hooks and modes of layers": Part(
        forward="x = self.norm_N(self.drop_N(self.linear_N(x)))",
        changes="""self.linear_N.register_forward_hook(lambda module, given, result: result * 2)
            self.linear_N._forward_hooks.clear()
            self.linear_N.register_forward_pre_hook(lambda module, given: (given[0] + 1,)) | self.drop_N.p = 0.0
            self.drop_N.p = 1.0 | self.linear_N._forward_pre_hooks.clear() | self.norm_N.train()
            self.norm_N.eval() | self.train() | self.eval() | self.drop_N.training = draw.choice((True, False))
            self.linear_N.register_full_backward_hook(lambda *given: None) | self.linear_N._backward_hooks.clear()
            self.norm_N.eps = draw.choice((1e-5, 1e-3)) | self.norm_N.momentum = None""",
        init="""self.linear_N, self.drop_N, self.norm_N = nn.Linear(4, 4), nn.Dropout(1.0).eval(), nn.BatchNorm1d(4).eval()""",
    ),
    "parameters": Part(
        forward="x = x * self.weight_N + self.buffer_N",
        changes="""self.weight_N.requires_grad_(draw.choice((True, False)))
            self.weight_N.data = torch.ones(4, dtype=torch.float64) | self.weight_N.data = torch.ones(1, 4)
            self.weight_N.data = torch.ones(4) | self.weight_N = nn.Parameter(torch.ones(4)) | self.weight_N = None
            del self.weight_N; self.weight_N = nn.Parameter(torch.ones(4)) | self.to(torch.float64)
            self.to(torch.float32) | self.buffer_N = torch.ones(8)[::2] | self.buffer_N.resize_(3, 4)
            self.buffer_N = torch.ones(4) | self.weight_N.mark = 1 | self.buffer_N._dynamo_dynamic_indices = {0}
            del self.buffer_N._dynamo_dynamic_indices | self.buffer_N = self.weight_N
            self.buffer_N.requires_grad_() | self.weight_N.__class__ = Marked_N | self.half()
            self._parameters['weight_N'] = self.weight_N.data | self._buffers['buffer_N'] = self.buffer_N.to('meta')
            self._parameters = Counts_N(self._parameters)
            self.buffer_N.set_(torch.ones(9).untyped_storage(), 2, (4,), (1,))
            self.load_state_dict(copy.deepcopy(self.state_dict()), assign=True)
            self.weight_N.grad = torch.ones_like(self.weight_N)""",
        above="""
            class Marked_N(nn.Parameter):
                pass
            class Counts_N(dict):
                def __getitem__(self, name):
                    return super().__getitem__(name) * 2 if torch.is_grad_enabled() else super().__getitem__(name)""",
        init="""
            self.weight_N = nn.Parameter(torch.ones(4))
            self.register_buffer('buffer_N', torch.zeros(4))""",
    ),
    "gradients of parameters": Part(
        forward="""
            x = x + 1 if self.weight_N.grad is None else x * 2
            x = x + 1 if self.weight_N.requires_grad else x""",
        changes="""self.weight_N.grad = None | self.weight_N.grad = torch.ones(4)
            self.weight_N.requires_grad_(draw.random() < 0.5)""",
        init="self.weight_N = nn.Parameter(torch.ones(4))",
    ),
    "parametrizations": Part(
        forward="x = x @ self.linear_N.weight",
        changes="""nn.utils.parametrize.register_parametrization(self.linear_N, 'weight', Doubled_N())
            nn.utils.parametrize.remove_parametrizations(self.linear_N, 'weight')
            Doubled_N.by = draw.choice((2, 3))
            self.linear_N = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)) | self.linear_N = nn.Linear(4, 4)""",
        above="""
            class Doubled_N(nn.Module):
                by = 2
                def forward(self, weight):
                    return weight * self.by""",
        init="self.linear_N = nn.Linear(4, 4)",
    ),
    "tensors elsewhere": Part(
        forward="x = x + TENSORS_N['a'] * LIST_N[0]",
        changes="""TENSORS_N['a'] = torch.ones(4) | TENSORS_N['a'] = torch.ones(4, dtype=torch.float64)
            LIST_N[0] = torch.ones(1) | LIST_N[0] = torch.ones(4, 4).t()[0] | LIST_N[0] = TENSORS_N['a']
            TENSORS_N['a'].t_() | LIST_N[0] = 2 | TENSORS_N['a'] = torch.ones(4).as_subclass(Sub_N)
            LIST_N[0].requires_grad_() | TENSORS_N['a'] = torch.ones(3, 4) | LIST_N[:] = [torch.full((4,), 2.0)]
            TENSORS_N['a'] = nn.Parameter(torch.ones(4))""",
        above="""
            TENSORS_N, LIST_N = {'a': torch.ones(4)}, [torch.ones(4)]
            class Sub_N(torch.Tensor):
                pass""",
    ),
    "torch itself": Part(
        forward="x = self.linear_N(F.relu(x))",
        changes="""F.relu = lambda x: x + 2 | F.relu = RELU_N | nn.Linear.forward = lambda self, x: x * 3
            nn.Linear.forward = LINEAR_N | nn.Linear.mark_N = 1 | nn.Module.mark_N = 1 | torch.Tensor.mark_N = 1""",
        above="RELU_N, LINEAR_N = F.relu, nn.Linear.forward",
        init="self.linear_N = nn.Linear(4, 4)",
        undo="""
            F.relu, nn.Linear.forward = RELU_N, LINEAR_N
            for each in (nn.Linear, nn.Module, torch.Tensor):
                'mark_N' in vars(each) and delattr(each, 'mark_N')""",
    ),
    "modes": Part(
        forward="""
            x = x + 1 if torch.is_grad_enabled() else x * 2
            x = x + 1 if self.training else x * 3
            x = x + torch.ones(4).double().float()""",
        changes="""torch.use_deterministic_algorithms(draw.random() < 0.5) | torch.set_default_dtype(torch.float64)
            self.train() | torch.set_default_dtype(torch.float32) | torch.set_default_device(None) | self.eval()
            torch.set_grad_enabled(draw.random() < 0.5) | torch.backends.mkldnn.enabled
            torch.set_float32_matmul_precision('high')""",
        undo="""
            torch.use_deterministic_algorithms(False)
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
            torch.set_grad_enabled(True)
            torch.set_float32_matmul_precision('highest')""",
    ),
    "the module itself": Part(
        forward="x = x * self.own_N",
        changes="""self.own_N = draw.choice((2, 3)) | self.__dict__ = dict(vars(self))
            self.__dict__ = collections.OrderedDict(vars(self)) | type(self).own_N = 5 | del self.own_N
            self.register_forward_hook(lambda *given: None) | self._forward_hooks.clear()
            self.__class__ = type('Derived', (type(self),), {}) | type(self).forward = type(self).forward
            type(self).forward = types.FunctionType(FORWARD.__code__, globals(), 'forward', None, FORWARD.__closure__)""",
        init="self.own_N = 2",
    ),
}
"""By what they read."""
