// Package imageapi is what the node agent serves about its image store under
// Path and what `carob image` reads; both ends share these types. It does
// nothing by itself.
package imageapi

// Path is where the node agent serves images, behind the API server's nodes/proxy.
//
//	GET    Path                 → List
//	POST   Path/import          ← an OCI or docker archive, → a stream of Progress, one JSON value a line
//	POST   Path/pull?ref=NAME   → a stream of Progress
//	POST   Path/tag?ref=NAME&name=NEW
//	DELETE Path?ref=NAME
const Path = "carob/images"

// Image is one image on a node.
type Image struct {
	ID      string   `json:"id"` // digest of its configuration
	Tags    []string `json:"tags,omitempty"`
	Digests []string `json:"digests,omitempty"`
	Size    uint64   `json:"size"`             // bytes on disk
	Pinned  bool     `json:"pinned,omitempty"` // stays when the disk is short: it was imported
}

// List is all images of a node.
type List struct {
	Images []Image `json:"images"`
}

// Progress is one line of an import or a pull. The last one has Done or Error.
type Progress struct {
	Message string   `json:"message,omitempty"`
	Done    []string `json:"done,omitempty"` // names that exist now
	Error   string   `json:"error,omitempty"`
}
