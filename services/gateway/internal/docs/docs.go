// Package docs serves the OpenAPI document and two pages for people: an index and a reader of the document. The pages are our own and
// fetch nothing from another host; their content security policy holds them to that.
package docs

import (
	"embed"
	"fmt"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"
)

// policy allows the pages their own script, style and the document, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed assets
var assets embed.FS

var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

// Mount adds the routes of the pages and of the document, which says this version.
func Mount(r chi.Router, version string) error {
	document, err := Document(version)
	if err != nil {
		return err
	}
	r.Get("/openapi.json", func(w http.ResponseWriter, _ *http.Request) { write(w, "application/json", document) })
	for route, file := range map[string]string{
		"/": "index.html", "/docs": "docs.html", "/docs/docs.js": "docs.js", "/docs/docs.css": "docs.css",
	} {
		body, err := assets.ReadFile(path.Join("assets", file))
		if err != nil {
			return fmt.Errorf("read the page %s: %w", file, err)
		}
		r.Get(route, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", policy)
			write(w, types[path.Ext(file)], body)
		})
	}
	return nil
}

func write(w http.ResponseWriter, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(body) // a client that is gone needs no answer
}
