package storage

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// sharedObject is an object that several clients receive. It is encoded once for all that want the
// same encoding, and never changed.
type sharedObject struct {
	metav1.Object // for reading only
	object        runtime.Object

	mu    sync.Mutex
	forms map[runtime.Identifier]*encoding
}

// encoding is an encoding of an object.
type encoding struct {
	make  sync.Once
	bytes []byte
	err   error
}

var _ runtime.CacheableObject = (*sharedObject)(nil)

// share makes the object of an event shareable between clients.
func share(ev watch.Event) watch.Event {
	if _, ok := ev.Object.(runtime.CacheableObject); ok {
		return ev
	}
	if o, ok := ev.Object.(metav1.Object); ok {
		ev.Object = &sharedObject{Object: o, object: ev.Object, forms: map[runtime.Identifier]*encoding{}}
	}
	return ev
}

// CacheEncode implements runtime.CacheableObject.
func (s *sharedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error,
	w io.Writer) error {
	s.mu.Lock()
	f := s.forms[id]
	if f == nil {
		f = &encoding{}
		s.forms[id] = f
	}
	s.mu.Unlock()
	f.make.Do(func() {
		var b bytes.Buffer
		f.err = encode(s.GetObject(), &b) // a copy: an encoder may set the kind
		f.bytes = b.Bytes()
	})
	if f.err != nil {
		return f.err
	}
	if b, ok := w.(runtime.Splice); ok {
		b.Splice(f.bytes)
		return nil
	}
	_, err := w.Write(f.bytes)
	return err
}

// GetObject implements runtime.CacheableObject.
func (s *sharedObject) GetObject() runtime.Object { return s.object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object.
func (s *sharedObject) DeepCopyObject() runtime.Object { return s.object.DeepCopyObject() }

// GetObjectKind implements runtime.Object. It is for reading only.
func (s *sharedObject) GetObjectKind() schema.ObjectKind { return s.object.GetObjectKind() }
