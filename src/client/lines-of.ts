/** The lines of a response that arrives in pieces, without reading ahead. */
export async function* linesOf(pieces: AsyncIterable<string | Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const piece of pieces) {
    const whole = rest + (typeof piece === 'string' ? piece : decoder.decode(piece, { stream: true }))
    const lines = whole.split('\n')
    rest = lines.pop() ?? ''
    yield* lines
  }
  if (rest !== '') yield rest
}
