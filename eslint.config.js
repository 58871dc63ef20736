// The lint rules: type-aware everywhere in TypeScript, and two house rules on top. What decides (core, protocol, settings,
// the use cases in app/) takes time, randomness and ids as arguments, and only programs for people write to the console.
import { defineConfig, globalIgnores } from 'eslint/config'
import tseslint from 'typescript-eslint'

const deciding = ['src/core/**/*.ts', 'src/protocol/**/*.ts', 'src/settings/**/*.ts', 'src/*/app/**/*.ts']
const forPeople = [
  'src/cli/**',
  'src/demo/**',
  'scripts/**',
  'packaging/**',
  'bench/**',
  'sim/main.ts',
  'crash/**',
  'mutation/**',
  'bin/**',
]

const injectIt = 'is ambient: take it as an argument (a clock, a timer, a source of ids).'
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
]
const randomness = [
  'randomUUID',
  'randomBytes',
  'randomInt',
  'randomFill',
  'randomFillSync',
  'getRandomValues',
  'webcrypto',
]

const noBarrels = {
  selector: 'ExportAllDeclaration',
  message: 'No barrels: import from the file that holds the name.',
}

export default defineConfig([
  globalIgnores(['dist/', 'coverage/', 'node_modules/', '.tallygate/']),
  {
    linterOptions: { reportUnusedDisableDirectives: 'error', reportUnusedInlineConfigs: 'error' },
    rules: {
      eqeqeq: 'error',
      'no-console': 'error',
      'no-constant-binary-expression': 'error',
      'no-self-compare': 'error',
      'no-unreachable-loop': 'error',
      'no-unsafe-finally': 'error',
      'no-async-promise-executor': 'error',
      'no-control-regex': 'error',
      'no-cond-assign': 'error',
      'no-fallthrough': 'error',
      'no-useless-escape': 'error',
      'no-restricted-syntax': ['error', noBarrels],
      'object-shorthand': 'error',
    },
  },
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // `type` and `interface` are both plain here: unions and shapes stand side by side.
      '@typescript-eslint/consistent-type-definitions': 'off',
      // An async method without await is how a synchronous adapter keeps its throws inside the promise.
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/no-unnecessary-condition': [
        'error',
        { allowConstantLoopConditions: 'only-allowed-literals' },
      ],
      '@typescript-eslint/no-unused-vars': [
        'error',
        { argsIgnorePattern: '^_', caughtErrors: 'all', ignoreRestSiblings: true },
      ],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
    },
  },
  {
    files: deciding,
    rules: {
      'no-restricted-globals': ['error', ...ambientGlobals.map((name) => ({ name, message: `It ${injectIt}` }))],
      'no-restricted-properties': [
        'error',
        ...ambientProperties.map(([object, property]) => ({ object, property, message: `It ${injectIt}` })),
      ],
      'no-restricted-syntax': [
        'error',
        noBarrels,
        { selector: 'NewExpression[callee.name="Date"][arguments.length=0]', message: `new Date() ${injectIt}` },
        { selector: 'CallExpression[callee.name="Date"]', message: `Date() ${injectIt}` },
        {
          selector: `MemberExpression[property.name=/^(${randomness.join('|')})$/]`,
          message: `Randomness ${injectIt}`,
        },
        {
          selector: `ImportSpecifier[imported.name=/^(${randomness.join('|')})$/]`,
          message: `Randomness ${injectIt}`,
        },
      ],
    },
  },
  { files: forPeople, rules: { 'no-console': 'off' } },
  {
    // A check looks into answers of which it knows nothing: what is not as it asserts must fail, not be assumed away.
    files: ['conformance/**/*.ts'],
    rules: Object.fromEntries(
      ['argument', 'assignment', 'call', 'member-access', 'return'].map((use) => [
        `@typescript-eslint/no-unsafe-${use}`,
        'off',
      ]),
    ),
  },
  {
    files: ['test/**/*.ts'],
    rules: {
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/unbound-method': 'off',
      'no-restricted-imports': [
        'error',
        { name: 'fast-check', message: 'Import test/support/fast-check.ts, which fixes the seed.' },
      ],
    },
  },
  { files: ['test/support/fast-check.ts'], rules: { 'no-restricted-imports': 'off' } },
])
