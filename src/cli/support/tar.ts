/** A tar archive (ustar) of a few small files, readable by its owner only. */

export interface PackedFile {
  /** Relative, at most 100 bytes. */
  readonly name: string
  readonly text: string
}

const BLOCK_BYTES = 512
const NAME_BYTES_MAX = 100

export function tar(files: readonly PackedFile[], now: number): Buffer {
  const pieces = files.flatMap(({ name, text }) => {
    const content = Buffer.from(text, 'utf8')
    const padding = Buffer.alloc((BLOCK_BYTES - (content.length % BLOCK_BYTES)) % BLOCK_BYTES)
    return [head(name, content.length, now), content, padding]
  })
  return Buffer.concat([...pieces, Buffer.alloc(2 * BLOCK_BYTES)])
}

function head(name: string, size: number, now: number): Buffer {
  if (Buffer.byteLength(name) > NAME_BYTES_MAX) throw new Error('invariant: names of packed files are short')
  const block = Buffer.alloc(BLOCK_BYTES)
  const octal = (value: number, digits: number): string => value.toString(8).padStart(digits, '0')
  block.write(name, 0)
  block.write(`${octal(0o600, 7)}\0`, 100)
  block.write(`${octal(0, 7)}\0`, 108)
  block.write(`${octal(0, 7)}\0`, 116)
  block.write(`${octal(size, 11)}\0`, 124)
  block.write(`${octal(Math.floor(now / 1000), 11)}\0`, 136)
  block.write(' '.repeat(8), 148)
  block.write('0', 156)
  block.write('ustar\u000000', 257)
  const sum = block.reduce((total, byte) => total + byte, 0)
  block.write(`${octal(sum, 6)}\0 `, 148)
  return block
}
