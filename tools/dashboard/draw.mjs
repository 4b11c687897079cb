// Draws docs/prometheus/dashboard.png from dashboard.json and what record.py wrote: `npm run draw -- FOLDER/answers.json`.
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { build } from 'esbuild';
import sharp from 'sharp';

const picture = '../../docs/prometheus/dashboard.png';
const board = JSON.parse(readFileSync('../../docs/prometheus/dashboard.json', 'utf8'));
const rows = Math.max(...board.panels.map(({ gridPos: { y, h } }) => y + h));

mkdirSync('build', { recursive: true });
copyFileSync(process.argv[2], 'build/answers.json');
await build({
  entryPoints: ['page.jsx'], outfile: 'build/page.js', bundle: true, mainFields: ['browser', 'module', 'main'], external: ['stream'], logLevel: 'error',
  define: { 'process.env.NODE_ENV': '"production"', global: 'globalThis' },
  loader: { '.svg': 'dataurl', '.png': 'dataurl', '.woff': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl' },
});
writeFileSync('build/index.html', '<!doctype html><meta charset="utf-8"><style>*{box-sizing:border-box}</style><link rel="stylesheet" href="page.css"><div id="board"></div><script src="page.js"></script>');
execFileSync(process.env.CHROMIUM ?? 'chromium', [
  '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--allow-file-access-from-files', '--virtual-time-budget=10000',
  `--window-size=1400,${8 + rows * 38}`, '--screenshot=build/shot.png', new URL('build/index.html', import.meta.url).href,
], { stdio: ['ignore', 'ignore', 'pipe'] });
await sharp('build/shot.png').png({ palette: true, colours: 256, dither: 0, effort: 10, compressionLevel: 9 }).toFile(picture);
