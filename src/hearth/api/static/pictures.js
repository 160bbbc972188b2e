// Pictures that a person gives to a model, made small enough to be sent.

const MOST_PIXELS = 1568; // Of the longer side: models that see shrink larger ones themselves.
const QUALITY = 0.88;
export const MOST_PICTURES = 6;

// A data: URL of a file. Throws where the browser cannot read it as a picture.
export async function pictureOf(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MOST_PIXELS / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // Behind what is transparent, which JPEG does not know.
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", QUALITY);
}

// The pictures among what was chosen, pasted or dropped.
export function picturesIn(transfer) {
  return [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/"));
}
