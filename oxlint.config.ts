// The lint rules: type-aware everywhere, and two rules of the project on top. Code that decides (core, protocol, settings
// and the capabilities of agent and cloud) takes time, randomness and ids as arguments, and only programs for people write to the console.
import { defineConfig } from 'oxlint'
import { injectIt } from './scripts/lint-rules.ts'

const deciding = ['src/core/**/*.ts', 'src/protocol/**/*.ts', 'src/settings/**/*.ts', 'src/{agent,cloud}/*/**/*.ts']
const adapters = ['src/{agent,cloud}/platform/**', 'src/cloud/http/**', 'src/cloud/storage/{sql,sqlite,postgres}/**']
const forPeople = [
  'src/cli/**',
  'src/demo/**',
  'scripts/**',
  'packaging/**',
  'bench/**',
  'sim/main.ts',
  'sim/sharing/main.ts',
  'crash/**',
  'mutation/**',
  'bin/**',
]

const ambientGlobals = [
  'setTimeout',
  'setInterval',
  'setImmediate',
  'performance',
  'crypto',
  'fetch',
  'process',
  'globalThis',
  'global',
]
const ambientProperties = [
  ['Date', 'now'],
  ['Math', 'random'],
  ['Temporal', 'Now'],
  ['AbortSignal', 'timeout'],
] as const

const base = [
  'eqeqeq',
  'no-async-promise-executor',
  'no-cond-assign',
  'no-console',
  'no-constant-binary-expression',
  'no-control-regex',
  'no-fallthrough',
  'no-self-compare',
  'no-unreachable-loop',
  'no-unsafe-finally',
  'no-useless-escape',
  'no-var',
  'object-shorthand',
  'prefer-const',
  'prefer-rest-params',
  'prefer-spread',
  'tallygate/no-barrel',
]

/** The strict and stylistic type-aware sets of typescript-eslint, without the rules that are set below. */
const typescript = `
  adjacent-overload-signatures array-type await-thenable ban-tslint-comment class-literal-property-style
  consistent-generic-constructors consistent-indexed-object-style consistent-type-assertions dot-notation
  no-array-constructor no-array-delete no-base-to-string no-confusing-non-null-assertion no-deprecated
  no-duplicate-enum-values no-duplicate-type-constituents no-dynamic-delete no-empty-function no-empty-object-type
  no-explicit-any no-extra-non-null-assertion no-extraneous-class no-floating-promises no-for-in-array no-implied-eval
  no-inferrable-types no-invalid-void-type no-meaningless-void-operator no-misused-new no-misused-promises
  no-misused-spread no-mixed-enums no-namespace no-non-null-asserted-nullish-coalescing
  no-non-null-asserted-optional-chain no-non-null-assertion no-redundant-type-constituents no-require-imports
  no-this-alias no-unnecessary-boolean-literal-compare no-unnecessary-template-expression
  no-unnecessary-type-arguments no-unnecessary-type-assertion no-unnecessary-type-constraint
  no-unnecessary-type-conversion no-unnecessary-type-parameters no-unsafe-argument no-unsafe-assignment no-unsafe-call
  no-unsafe-declaration-merging no-unsafe-enum-comparison no-unsafe-function-type no-unsafe-member-access
  no-unsafe-return no-unsafe-unary-minus no-unused-expressions no-useless-constructor no-useless-default-assignment
  no-wrapper-object-types non-nullable-type-assertion-style only-throw-error prefer-as-const prefer-find prefer-for-of
  prefer-function-type prefer-includes prefer-literal-enum-member prefer-namespace-keyword prefer-nullish-coalescing
  prefer-promise-reject-errors prefer-reduce-type-parameter prefer-regexp-exec
  prefer-return-this-type prefer-string-starts-ends-with related-getter-setter-pairs triple-slash-reference
  unbound-method unified-signatures use-unknown-in-catch-callback-variable`
  .trim()
  .split(/\s+/)

const all = (names: readonly string[], level: 'error' | 'off') =>
  Object.fromEntries(names.map((name) => [name, level] as const))

export default defineConfig({
  plugins: ['typescript', 'eslint'],
  jsPlugins: ['./scripts/lint-rules.ts'],
  categories: { correctness: 'off' },
  options: { typeAware: true, reportUnusedDisableDirectives: 'error' },
  ignorePatterns: ['node_modules', '.ci/**', 'dist/**', 'coverage/**', '.tallygate/**'],
  rules: {
    ...all(base, 'error'),
    ...all(
      typescript.map((name) => `typescript/${name}`),
      'error',
    ),
    'typescript/ban-ts-comment': ['error', { minimumDescriptionLength: 10 }],
    'typescript/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
    'typescript/no-unnecessary-condition': ['error', { allowConstantLoopConditions: 'only-allowed-literals' }],
    'typescript/restrict-plus-operands': [
      'error',
      {
        allowAny: false,
        allowBoolean: false,
        allowNullish: false,
        allowNumberAndString: false,
        allowRegExp: false,
      },
    ],
    'typescript/restrict-template-expressions': ['error', { allowNumber: true }],
    'typescript/return-await': ['error', 'error-handling-correctness-only'],
    'typescript/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
    'no-unused-vars': [
      'error',
      { argsIgnorePattern: '^_', caughtErrors: 'all', ignoreRestSiblings: true, ignoreUsingDeclarations: true },
    ],
  },
  overrides: [
    {
      files: deciding,
      rules: {
        'no-restricted-globals': ['error', ...ambientGlobals.map((name) => ({ name, message: `It ${injectIt}` }))],
        'no-restricted-properties': [
          'error',
          ...ambientProperties.map(([object, property]) => ({ object, property, message: `It ${injectIt}` })),
        ],
        'tallygate/no-ambient': 'error',
      },
    },
    {
      files: adapters,
      rules: all(['no-restricted-globals', 'no-restricted-properties', 'tallygate/no-ambient'], 'off'),
    },
    {
      // JavaScript is not part of the TypeScript project, so its types are unknown.
      files: ['**/*.js', '**/*.mjs'],
      rules: all(
        typescript.map((name) => `typescript/${name}`),
        'off',
      ),
    },
    { files: forPeople, rules: { 'no-console': 'off' } },
    {
      files: ['src/**/*.ts'],
      rules: {
        'max-params': ['error', { max: 4 }],
        'max-lines-per-function': ['error', { max: 70, skipBlankLines: true, skipComments: true }],
      },
    },
    {
      // A function returns an object of small methods or statements, one for each query or change.
      files: ['src/cloud/storage/sql/*.ts', 'src/agent/platform/sqlite/journal-statements.ts'],
      rules: { 'max-lines-per-function': 'off' },
    },
    {
      // A function returns a table of routes.
      files: ['src/cloud/http/service/*.ts'],
      rules: { 'max-lines-per-function': 'off' },
    },
    {
      // Functions of the C library have the parameters that it gives them.
      files: ['src/agent/platform/system/peer-credentials.ts', 'src/cli/service-manager/unix-calls.ts'],
      rules: { 'max-params': 'off' },
    },
    {
      // A check asserts the shape of a response it knows nothing of; a response of another shape must fail the check.
      files: ['conformance/**/*.ts'],
      rules: all(
        ['argument', 'assignment', 'call', 'member-access', 'return'].map((use) => `typescript/no-unsafe-${use}`),
        'off',
      ),
    },
    {
      files: ['test/**/*.ts'],
      rules: {
        'typescript/no-non-null-assertion': 'off',
        'typescript/unbound-method': 'off',
        'no-restricted-imports': [
          'error',
          { name: 'fast-check', message: 'Import test/support/fast-check.ts, which fixes the seed.' },
        ],
      },
    },
    { files: ['test/support/fast-check.ts'], rules: { 'no-restricted-imports': 'off' } },
  ],
})
