package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

// batching is the store of one served version of a custom resource. Objects that are stored in
// another version are usually converted by the user's webhook: a list calls it once for batchSize
// objects, not once for each.
//
// Such a list is read twice. The first read only collects the objects to convert; the second is the
// engine's own and finds each of them converted. An object that has changed in between is converted
// separately.
type batching struct {
	storage.Interface
	codec     runtime.Codec
	newObject func() runtime.Object
}

// batchSize is how many objects one call converts: as many as a page of a client's list has.
const batchSize = 500

// GetList implements storage.Interface.
func (b *batching) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	out, ok := list.(*unstructured.UnstructuredList)
	if !ok || !opts.Recursive {
		return b.Interface.GetList(ctx, key, opts, list)
	}
	// Most objects are stored as they are read.
	version := b.newObject().GetObjectKind().GroupVersionKind().GroupVersion().String()
	looking := &reading{version: version, stop: true}
	err := b.Interface.GetList(looking.in(ctx), key, opts, out)
	if !looking.others {
		return err
	}
	out.Items = nil
	collecting := &reading{version: version}
	all := opts
	if !all.Predicate.Empty() { // selected by the result of the conversion
		all.Predicate.Label, all.Predicate.Field, all.Predicate.Limit = labels.Everything(), fields.Everything(), 0
	}
	if err := b.Interface.GetList(collecting.in(ctx), key, all, &unstructured.UnstructuredList{}); err != nil {
		return err
	}
	found := &reading{version: version, done: true, converted: map[string]*unstructured.Unstructured{}}
	for texts := range slices.Chunk(collecting.texts, batchSize) {
		if err := b.convert(texts, found.converted); unanswered(err) {
			return apierrors.NewInternalError(err)
		} else if err != nil {
			break // the engine's own read converts one at a time: the object that fails may not be selected
		}
	}
	return b.Interface.GetList(found.in(ctx), key, opts, out)
}

// unanswered reports whether a conversion webhook did not answer. It would not answer for single objects either, and
// waiting twice for its time limit of 30 s takes as long as the client's request may take. The library keeps only the
// text of the error; a webhook that answers with such a text loses nothing but the second call.
func unanswered(err error) bool {
	return err != nil && strings.Contains(err.Error(), "conversion webhook for ") &&
		strings.Contains(err.Error(), " failed: Post \"")
}

// convert converts stored objects and puts the results into converted.
func (b *batching) convert(texts [][]byte, converted map[string]*unstructured.Unstructured) error {
	list := &unstructured.UnstructuredList{}
	for _, text := range texts {
		// An object without a version needs no conversion.
		o := &unstructured.Unstructured{}
		if _, _, err := b.codec.Decode(text, nil, o); err != nil {
			return fmt.Errorf("decode a stored object: %w", err)
		}
		list.Items = append(list.Items, *o)
	}
	list.SetGroupVersionKind(list.Items[0].GroupVersionKind())
	list.SetKind(list.GetKind() + "List")
	text, err := list.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode a list: %w", err)
	}
	out, _, err := b.codec.Decode(text, nil, nil)
	if err != nil {
		return fmt.Errorf("convert a list: %w", err)
	}
	result, ok := out.(*unstructured.UnstructuredList)
	if !ok || len(result.Items) != len(texts) {
		return fmt.Errorf("convert a list: %d objects became %T", len(texts), out)
	}
	for i := range result.Items {
		// The codec prunes single objects only. It also sets defaults, which belong to the stored
		// version.
		is := &result.Items[i]
		text, err := is.MarshalJSON()
		if err != nil {
			return fmt.Errorf("encode a converted object: %w", err)
		}
		o := &unstructured.Unstructured{}
		if _, _, err := b.codec.Decode(text, nil, o); err != nil {
			return fmt.Errorf("decode a converted object: %w", err)
		}
		within(o.Object, is.Object)
		converted[string(texts[i])] = o
	}
	return nil
}

// within removes from an object what another one does not have.
func within(o, of map[string]any) {
	for k, v := range o {
		w, ok := of[k]
		switch {
		case !ok:
			delete(o, k)
		case w == nil:
			o[k] = nil
		default:
			withinValue(v, w)
		}
	}
}

func withinValue(v, of any) {
	switch v := v.(type) {
	case map[string]any:
		if w, ok := of.(map[string]any); ok {
			within(v, w)
		}
	case []any:
		if w, ok := of.([]any); ok && len(v) == len(w) {
			for i := range v {
				withinValue(v[i], w[i])
			}
		}
	}
}

// reading is one read of a list: until an object of another version is found, collecting all of
// those, or with their conversions.
type reading struct {
	version    string
	stop, done bool

	mu        sync.Mutex
	others    bool
	texts     [][]byte
	converted map[string]*unstructured.Unstructured // by the stored object; read only
}

type readingKey struct{}

func (r *reading) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, readingKey{}, r)
}

// isOther reports whether an object is stored in another version. Objects stored by this server
// begin with their version.
func (r *reading) isOther(data []byte) bool {
	if bytes.HasPrefix(data, []byte(`{"apiVersion":"`+r.version+`"`)) {
		return false
	}
	var o struct {
		APIVersion string `json:"apiVersion"`
	}
	return json.Unmarshal(data, &o) == nil && o.APIVersion != r.version
}

// batchDecoder decodes the items of a read.
type batchDecoder struct {
	etcd3.Decoder
	others    etcd3.Decoder // for items that the batch did not convert: the first error ends the list
	versioner storage.Versioner
}

// errOtherVersion ends a read that only looks for one.
var errOtherVersion = fmt.Errorf("an object of another version")

// DecodeListItem implements etcd3.Decoder.
func (d batchDecoder) DecodeListItem(ctx context.Context, data []byte, rev uint64,
	newItem func() runtime.Object) (runtime.Object, error) {
	r, ok := ctx.Value(readingKey{}).(*reading)
	if !ok || !r.isOther(data) {
		return d.Decoder.DecodeListItem(ctx, data, rev, newItem)
	}
	switch {
	case r.done:
		o := r.converted[string(data)]
		if o == nil {
			return d.others.DecodeListItem(ctx, data, rev, newItem)
		}
		o = o.DeepCopy() // two objects may differ only in their keys
		if err := d.versioner.UpdateObject(o, rev); err != nil {
			return nil, fmt.Errorf("set the version of an object: %w", err)
		}
		return o, nil
	case r.stop:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.others = true
		return nil, errOtherVersion
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, data)
	return newItem(), nil
}
