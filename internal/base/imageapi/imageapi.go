// Package imageapi defines the node agent's API for its image store under Path, which `carob image`
// uses; both sides share these types. It does nothing by itself.
package imageapi

// Path is where the node agent serves images, behind the API server's nodes/proxy.
//
//	GET    Path                 → List
//	POST   Path/import          ← an OCI or Docker archive, → a stream of Progress, one JSON value per line
//	POST   Path/pull?ref=NAME   → a stream of Progress
//	POST   Path/tag?ref=NAME&name=NEW
//	DELETE Path?ref=NAME
const Path = "carob/images"

// Image is one image on a node.
type Image struct {
	ID      string   `json:"id"` // digest of the image config
	Tags    []string `json:"tags,omitempty"`
	Digests []string `json:"digests,omitempty"`
	Size    uint64   `json:"size"`             // bytes on disk
	Pinned  bool     `json:"pinned,omitempty"` // not removed when the disk is full, because it was imported
}

// List is the list of all images of a node.
type List struct {
	Images []Image `json:"images"`
}

// Progress is one line of an import or a pull. The last line has Done or Error.
type Progress struct {
	Message string   `json:"message,omitempty"`
	Done    []string `json:"done,omitempty"` // names that now exist
	Error   string   `json:"error,omitempty"`
}
