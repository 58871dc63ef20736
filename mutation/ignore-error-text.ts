/**
 * A plugin of Stryker: the words and details of an error are for people, and no test repeats all of them. Its code is mutated
 * like everything else.
 */
interface Node {
  readonly type: string
  readonly name?: string
  readonly id?: Node
  readonly callee?: Node
  readonly arguments?: readonly Node[]
}

interface Path {
  readonly node: Node
  readonly parentPath: Path | null
}

function shouldIgnore({ node, parentPath }: Path): string | undefined {
  const parent = parentPath?.node
  if (parent?.type === 'VariableDeclarator') {
    // By convention, they go into an error.
    return parent.id !== node && /^(?:message|details)$/.test(parent.id?.name ?? '')
      ? 'the words of an error'
      : undefined
  }
  const name = parent?.type === 'NewExpression' ? (parent.callee?.name ?? '') : ''
  if (!name.endsWith('Error')) return undefined
  const index = parent?.arguments?.indexOf(node) ?? -1
  return index > (name === 'CodedError' ? 0 : -1) ? 'the words of an error' : undefined
}

export const strykerPlugins = [{ kind: 'Ignore', name: 'error-text', value: { shouldIgnore } }]
