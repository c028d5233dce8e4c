"use strict";
// A problem's `type` is "/docs#<code>"; Swagger UI's own links begin with "#/".
const code = document.getElementById(location.hash.slice(1));
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: code === null, // it would take the code for a link of its own, and replace it
  validatorUrl: null, // its default sends the document to another host
  defaultModelsExpandDepth: -1, // schemas are shown where they are used
  displayRequestDuration: true,
});
if (code !== null) {
  // What is drawn above the code moves it: scroll there again, until the reader acts.
  const drawn = new ResizeObserver(() => code.scrollIntoView());
  drawn.observe(document.getElementById("swagger-ui"));
  for (const act of ["wheel", "pointerdown", "keydown"]) addEventListener(act, () => drawn.disconnect(), { once: true });
}
