// Two lint rules of this project, in the plugin interface that oxlint shares with ESLint.

interface Context {
  report: (problem: { node: unknown; message: string }) => void
}
interface Named {
  type: string
  name?: string
  value?: string
}
type Node = Record<'callee' | 'property' | 'imported', Named> & { arguments: unknown[] }

export const injectIt = 'is ambient: take it as an argument (a clock, a timer, a source of ids).'
const randomness = new Set([
  'randomUUID',
  'randomBytes',
  'randomInt',
  'randomFill',
  'randomFillSync',
  'getRandomValues',
  'webcrypto',
])

const isDate = (node: Named): boolean => node.type === 'Identifier' && node.name === 'Date'
const isRandom = (node: Named): boolean => randomness.has(node.name ?? node.value ?? '')

export default {
  meta: { name: 'tallygate' },
  rules: {
    'no-barrel': {
      create: (context: Context) => ({
        ExportAllDeclaration(node: Node) {
          context.report({ node, message: 'No barrels: import from the file that holds the name.' })
        },
      }),
    },
    'no-ambient': {
      create: (context: Context) => ({
        NewExpression(node: Node) {
          if (isDate(node.callee) && node.arguments.length === 0)
            context.report({ node, message: `new Date() ${injectIt}` })
        },
        CallExpression(node: Node) {
          if (isDate(node.callee)) context.report({ node, message: `Date() ${injectIt}` })
        },
        MemberExpression(node: Node) {
          if (isRandom(node.property)) context.report({ node, message: `Randomness ${injectIt}` })
        },
        ImportSpecifier(node: Node) {
          if (isRandom(node.imported)) context.report({ node, message: `Randomness ${injectIt}` })
        },
      }),
    },
  },
}
