/**
 * A plugin of Stryker: the words of an error are for people, and no test repeats them. Its code and its facts are mutated like
 * everything else.
 */
interface Node {
  readonly type: string
  readonly callee?: { readonly name?: string }
  readonly arguments?: readonly Node[]
}

interface Path {
  readonly node: Node
  readonly parentPath: Path | null
}

function shouldIgnore({ node, parentPath }: Path): string | undefined {
  if (node.type !== 'StringLiteral' && node.type !== 'TemplateLiteral') return undefined
  const parent = parentPath?.node
  if (parent?.type !== 'NewExpression' || !(parent.callee?.name ?? '').endsWith('Error')) return undefined
  const isCode = parent.callee?.name === 'CodedError' && parent.arguments?.[0] === node
  return isCode ? undefined : 'the words of an error'
}

export const strykerPlugins = [{ kind: 'Ignore', name: 'error-text', value: { shouldIgnore } }]
