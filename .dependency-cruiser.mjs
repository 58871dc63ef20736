// The arrows between the parts: which folder may import which. Type-only imports count like any other.
// `scripts/arrows.ts` runs these rules and refuses a run that has read fewer files than exist.
const side = '^src/(agent|cloud)'
// What reaches the outside world; every other folder of a side holds a capability.
const adapters = '(platform|http|storage/(sql|sqlite|postgres))/'
const packages = (...names) => names.map((name) => `(^|/)node_modules/${name}/`)
/** Development dependencies whose code `npm run build` puts into the bundles. */
const bundled = [
  ...[
    '@nats-io/jetstream',
    '@nats-io/transport-node',
    '@scalar/fastify-api-reference',
    'aedes',
    'aws4fetch',
    'commander',
    'fastify',
    'jose',
    'kysely',
    'mqtt',
    'openid-client',
    'p-retry',
    'pg',
    'pino',
    'prom-client',
    'smol-toml',
    'ws',
    'yaml',
    'zod',
  ],
]
const builtins = (...names) => names.map((name) => `^(node:)?${name}$`)

/** One folder's whole list of what it may import; everything else is a violation. */
const mayImportOnly = (name, from, allowed, comment) => ({
  name,
  comment,
  severity: 'error',
  from: { path: from },
  to: { pathNot: allowed },
})

/** @type {import('dependency-cruiser').IConfiguration} */
export default {
  forbidden: [
    {
      name: 'no-cycles',
      comment: 'Modules that import each other in a circle can be neither read nor changed alone.',
      severity: 'error',
      from: {},
      to: { circular: true },
    },
    {
      name: 'no-unresolved',
      comment: 'The import leads nowhere.',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true },
    },
    mayImportOnly('core-is-pure', '^src/core/', ['^src/core/'], 'core imports nothing but itself.'),
    mayImportOnly(
      'html-stands-alone',
      '^src/html/',
      ['^src/html/', ...builtins('crypto')],
      'html imports itself, and of Node crypto.',
    ),
    mayImportOnly(
      'protocol-knows-core',
      '^src/protocol/',
      ['^src/(protocol|core)/', ...packages('zod', 'jose', 'koffi'), ...builtins('crypto', 'zlib', 'module')],
      'protocol imports core, zod, jose, koffi, and of Node crypto, zlib and module.',
    ),
    mayImportOnly(
      'settings-stand-alone',
      '^src/settings/',
      ['^src/settings/', '^src/protocol/(errors|file-reasons|log)', ...packages('zod', 'smol-toml')],
      'settings import the error codes, the reasons of files, the log, zod and smol-toml.',
    ),
    mayImportOnly(
      'platform-is-small',
      '^src/platform/',
      [
        '^src/(platform|protocol)/',
        ...builtins('fs', 'path', 'crypto', 'http', 'https', 'net', 'tls', 'events', 'module', 'os'),
        ...packages('better-sqlite3', 'pino'),
      ],
      'platform has adapters that both sides use: it imports protocol, the file system, the network, events, the number of processors, the C library, SQLite and pino.',
    ),
    {
      name: 'client-sees-the-wire',
      comment: 'The client knows the services by their messages only.',
      severity: 'error',
      from: { path: '^src/client/' },
      to: { path: '^src/', pathNot: '^src/(client|protocol|core|platform)/' },
    },
    mayImportOnly(
      'client-package-stands-alone',
      '^sdk/node/src/',
      ['^sdk/node/src/', ...builtins('crypto', 'http', 'timers/promises')],
      'The client package has no dependencies and shares no code with agent and cloud.',
    ),
    {
      name: 'agent-and-cloud-meet-on-the-wire',
      comment: 'agent and cloud never import each other.',
      severity: 'error',
      from: { path: `${side}/` },
      to: { path: `${side}/`, pathNot: '^src/$1/' },
    },
    {
      name: 'only-the-sign-in-loads-openid-client',
      comment: 'The agent, the cloud and the other commands start without it; provider.ts is imported when it is used.',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/cli/sign-in/provider[.]ts$' },
      to: { path: packages('openid-client', 'oauth4webapi') },
    },
    {
      name: 'sign-in-is-loaded-when-used',
      comment: 'A static import of provider.ts would load openid-client with every command.',
      severity: 'error',
      from: { path: '^src/' },
      to: { path: '^src/cli/sign-in/provider[.]ts$', dependencyTypesNot: ['dynamic-import', 'type-only'] },
    },
    {
      name: 'sides-know-no-command',
      comment: 'agent and cloud import core, protocol, settings, platform and html; the commands stand above them.',
      severity: 'error',
      from: { path: `${side}/` },
      to: { path: '^src/', pathNot: ['^src/(core|protocol|settings|platform|html)/', `${side}/`] },
    },
    {
      name: 'demo-talks-to-processes',
      comment: 'The demo drives agent and cloud over their public interfaces, as a customer would.',
      severity: 'error',
      from: { path: '^src/demo/' },
      to: { path: `${side}/` },
    },
    {
      name: 'capabilities-know-no-adapters',
      comment: 'A use case declares the interface that it needs; compose.ts hands it the adapter that fits.',
      severity: 'error',
      // The types of the cloud's store are those of its SQL, which both databases share.
      from: { path: `${side}/[^/]+/`, pathNot: [`${side}/${adapters}`, '^src/cloud/storage/store[.]ts$'] },
      to: { path: [`^src/$1/${adapters}`, '^src/platform/'] },
    },
    {
      name: 'store-types-only',
      comment: 'The store takes types from its SQL, and no code.',
      severity: 'error',
      from: { path: '^src/cloud/storage/store[.]ts$' },
      to: { path: '^src/', dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'composed-know-no-composition',
      comment: 'Use cases and adapters are composed; they know nothing of the composition.',
      severity: 'error',
      from: { path: `${side}/[^/]+/` },
      to: { path: '^src/$1/(compose|compose-cell|open-cell)[.]ts$' },
    },
    {
      name: 'capabilities-do-no-io',
      comment: 'Use cases import no package and no Node module that reaches the outside world.',
      severity: 'error',
      from: { path: `${side}/[^/]+/`, pathNot: `${side}/${adapters}` },
      to: {
        pathNot: [
          '^src/',
          '^[.]/',
          ...packages('zod', 'jose'),
          ...builtins('crypto', 'assert', 'events', 'util', 'buffer'),
        ],
      },
    },
    {
      name: 'only-compose-names-adapters',
      comment: 'One place on each side names the concrete adapters.',
      severity: 'error',
      from: { path: `${side}/[^/]+[.]ts$`, pathNot: `${side}/(compose|compose-cell|open-cell)[.]ts$` },
      to: { path: `^src/$1/${adapters}` },
    },
    {
      name: 'conformance-is-black-box',
      comment: 'The conformance suite knows a server by its address alone, and could judge any other.',
      severity: 'error',
      from: { path: '^conformance/' },
      to: { path: '^(src|test|bench|scripts|bin)/' },
    },
    {
      name: 'product-knows-no-scaffold',
      comment:
        'src imports no tests, benchmarks, crash tools, simulator, mutation testing, scripts, conformance checks or client packages.',
      severity: 'error',
      from: { path: '^src/' },
      to: { path: '^(test|bench|sim|crash|mutation|scripts|packaging|conformance|sdk)/' },
    },
    {
      name: 'product-needs-no-dev-packages',
      comment:
        'What src imports is a dependency in package.json, or a package that the build bundles, which is listed here.',
      severity: 'error',
      from: { path: '^(src|bin)/' },
      to: { dependencyTypes: ['npm-dev', 'npm-no-pkg', 'npm-unknown'], pathNot: packages('@types', ...bundled) },
    },
  ],
  options: {
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    doNotFollow: { path: 'node_modules' },
    exclude: { path: '^dist/' },
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['import', 'types', 'node', 'default'],
      extensions: ['.ts', '.js', '.json', '.d.ts'],
    },
  },
}
