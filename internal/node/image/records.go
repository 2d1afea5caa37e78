package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
)

// records stores which images were pulled with which credentials, so that no pod uses an image for which another needed
// a password (L3.114). An image without a record was pulled without credentials, or not by the agent: every pod may use
// it.
//
// They hold hashes of credentials, never credentials. It is safe for concurrent use.
type records struct {
	dir string // empty: kept in memory only

	mu      sync.Mutex
	images  map[string]*record // by image id
	pulling map[string]int     // repositories that are being pulled with credentials, and how often
	damaged map[string]bool    // names of files that could not be read: no pod may use their images
}

// record is one image that was pulled with credentials.
type record struct {
	Image string             `json:"image"` // id
	Time  time.Time          `json:"time"`  // of the last change
	Names map[string]granted `json:"names"` // by repository
}

// granted lists who may use an image under a name.
type granted struct {
	Everybody bool         `json:"everybody,omitempty"` // a pull without credentials succeeded, too
	By        []credential `json:"by,omitempty"`
}

// credential is a registry credential out of a secret.
type credential struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Hash      string    `json:"hash"` // of the credential itself
}

// same reports whether two credentials are the same secret or have the same content.
func (c credential) same(o credential) bool {
	return c.Hash == o.Hash || c.UID == o.UID && c.Namespace == o.Namespace && c.Name == o.Name
}

const (
	recordSuffix = ".json"
	intentSuffix = ".pulling"
	// recordAge protects a record that was just written from a list of images that was made before.
	recordAge = 5 * time.Minute
)

// openRecords reads the records below dir; there may be none yet. An image whose record is damaged needs credentials
// again: the file's name still says which image it is.
func openRecords(dir string) (*records, error) {
	r := &records{dir: dir, images: map[string]*record{}, pulling: map[string]int{}, damaged: map[string]bool{}}
	if dir == "" {
		return r, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the records of pulled images: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); !e.Type().IsRegular() || ext != intentSuffix && ext != recordSuffix {
			continue
		}
		if err := r.read(name); err != nil {
			klog.Background().Error(err, "The record of a pulled image cannot be read; "+
				"pods use this image only after a new pull", "file", filepath.Join(dir, name))
			r.damaged[name] = true
		}
	}
	return r, nil
}

// read reads one file of the directory.
func (r *records) read(name string) error {
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return err
	}
	if filepath.Ext(name) == intentSuffix {
		if r.file(string(text)+intentSuffix) != name {
			return errors.New("its content does not belong to its name")
		}
		r.pulling[string(text)] = 1 // the agent ended meanwhile: the result is unknown
		return nil
	}
	rec := &record{}
	if err := json.Unmarshal(text, rec); err != nil {
		return err
	}
	if rec.Names == nil || r.file(rec.Image+recordSuffix) != name {
		return errors.New("its content does not belong to its name")
	}
	r.images[rec.Image] = rec
	return nil
}

// repository is a normalized name without tag and digest.
func repository(name string) string {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.TrimNamed(ref).String()
}

// pulled reports whether the image has a record, or may be what a pull brings whose end was not recorded.
func (r *records) pulled(name, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.images[id] != nil || r.pulling[repository(name)] > 0 || r.damaged[r.file(id+recordSuffix)] ||
		r.damaged[r.file(repository(name)+intentSuffix)]
}

// open reports whether a pull without credentials has brought the image.
func (r *records) open(name, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.images[id]
	return rec != nil && rec.Names[repository(name)].Everybody
}

// allows reports whether one of the credentials gives access to a restricted image.
func (r *records) allows(name, id string, with []credential) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.images[id]
	if rec == nil {
		return false
	}
	return slices.ContainsFunc(rec.Names[repository(name)].By,
		func(c credential) bool { return slices.ContainsFunc(with, c.same) })
}

// begin records the start of a pull with credentials: if the agent ends before it records the
// end, the image must not count as unrestricted.
func (r *records) begin(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	name = repository(name)
	r.pulling[name]++
	if r.dir == "" || r.pulling[name] > 1 {
		return nil
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("record a pull: %w", err)
	}
	return r.write(name+intentSuffix, []byte(name))
}

// end is the counterpart of begin; id is the pulled image, empty for none.
func (r *records) end(name, id string, with credential) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	name = repository(name)
	if id != "" {
		if err := r.grant(name, id, func(g *granted) bool {
			if slices.Contains(g.By, with) {
				return false
			}
			g.By = append(g.By, with)
			return true
		}); err != nil {
			return err
		}
	}
	if r.pulling[name]--; r.pulling[name] > 0 {
		return nil
	}
	return r.forget(name)
}

// forget removes what is known of pulls in progress; r.mu is held.
func (r *records) forget(name string) error {
	if _, ok := r.pulling[name]; !ok && !r.damaged[r.file(name+intentSuffix)] {
		return nil
	}
	delete(r.pulling, name)
	return r.remove(name + intentSuffix)
}

// free records that a pull without credentials brought the image. An image without a pull with credentials gets a
// record only with unknown: if the policy requires credentials for images without a record.
func (r *records) free(name, id string, unknown bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	name = repository(name)
	if r.images[id] != nil || r.damaged[r.file(id+recordSuffix)] || unknown {
		return r.grant(name, id, func(g *granted) bool {
			was := g.Everybody
			g.Everybody = true
			return !was
		})
	}
	return r.forget(name)
}

// grant changes a record, with r.mu held.
func (r *records) grant(name, id string, change func(*granted) bool) error {
	rec := r.images[id]
	if rec == nil {
		rec = &record{Image: id, Names: map[string]granted{}}
		r.images[id] = rec
	}
	g := rec.Names[name]
	if !change(&g) {
		return nil
	}
	rec.Names[name], rec.Time = g, time.Now()
	if r.dir == "" {
		return nil
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("record a pull: %w", err)
	}
	return r.write(id+recordSuffix, text)
}

// prune removes the records of images that no longer exist.
func (r *records) prune(here []*cri.Image) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for id, rec := range r.images {
		if time.Since(rec.Time) < recordAge ||
			slices.ContainsFunc(here, func(im *cri.Image) bool { return im.Id == id }) {
			continue
		}
		delete(r.images, id)
		errs = append(errs, r.remove(id+recordSuffix))
	}
	for name := range r.damaged {
		if filepath.Ext(name) == recordSuffix && !slices.ContainsFunc(here, func(im *cri.Image) bool {
			return r.file(im.Id+recordSuffix) == name
		}) {
			errs = append(errs, r.removeFile(name))
		}
	}
	return errors.Join(errs...)
}

// file is the name of the file of a record; names and ids hold characters that files can't.
func (r *records) file(name string) string {
	ext := filepath.Ext(name)
	sum := sha256.Sum256([]byte(strings.TrimSuffix(name, ext)))
	return hex.EncodeToString(sum[:]) + ext
}

func (r *records) write(name string, text []byte) error {
	file := r.file(name)
	if err := atomicfile.Write(filepath.Join(r.dir, file), text, 0o600); err != nil {
		return fmt.Errorf("record a pull: %w", err)
	}
	delete(r.damaged, file)
	return nil
}

func (r *records) remove(name string) error { return r.removeFile(r.file(name)) }

func (r *records) removeFile(file string) error {
	if r.dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(r.dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record a pull: %w", err)
	}
	delete(r.damaged, file)
	return nil
}
