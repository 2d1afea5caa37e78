package lists

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// jsonSerializer encodes lists in JSON, unless pretty printing is requested.
type jsonSerializer struct {
	runtime.Serializer
	cache *Cache
}

// Encode implements runtime.Encoder.
func (s jsonSerializer) Encode(o runtime.Object, w io.Writer) error {
	l, ok := listOf(o)
	if _, own := o.(json.Marshaler); !ok || own || !l.fieldsInJSON() {
		return s.Serializer.Encode(o, w)
	}
	// A short first write marks a list in parts, as prefix does.
	if _, err := w.Write([]byte("{")); err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(w, chunk)
	if err := s.write(l, buffered); err != nil {
		return err
	}
	return buffered.Flush()
}

// fieldsInJSON reports whether the list has exactly the fields of every list.
func (l list) fieldsInJSON() bool {
	t := l.of
	tag, tagged := t.Field(0).Tag.Lookup("json")
	return t.Field(0).Anonymous && tagged && (tag == "" || tag == ",inline") &&
		t.Field(1).Tag.Get("json") == "metadata,omitempty" && t.Field(2).Tag.Get("json") == "items"
}

// write writes the list after its opening brace.
func (s jsonSerializer) write(l list, w *bufio.Writer) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	encoded := func(v any) ([]byte, error) {
		b.Reset()
		err := e.Encode(v)
		return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
	}
	head := []struct {
		name  string
		value any
		there bool
	}{{`"kind":`, l.Kind, l.Kind != ""}, {`"apiVersion":`, l.APIVersion, l.APIVersion != ""},
		{`"metadata":`, *l.meta, true}}
	for _, f := range head {
		if !f.there {
			continue
		}
		data, err := encoded(f.value)
		if err != nil {
			return err
		}
		w.WriteString(f.name) //nolint:errcheck // Flush returns it
		w.Write(data)         //nolint:errcheck // Flush returns it
		w.WriteByte(',')      //nolint:errcheck // Flush returns it
	}
	w.WriteString(`"items":[`) //nolint:errcheck // Flush returns it
	held := 0
	for i := range l.items.Len() {
		if i > 0 {
			w.WriteByte(',') //nolint:errcheck // Flush returns it
		}
		o := l.item(i)
		k, version := key{reflect.TypeOf(o), o.GetUID(), true}, o.GetResourceVersion()
		// Here the object's type, if it has one, is part of its bytes.
		keep := held < generation && k.uid != "" && version != "" && untyped(o)
		var data []byte
		if keep {
			data = s.cache.get(k, version)
		}
		if data == nil {
			var err error
			if data, err = encoded(o); err != nil {
				return err
			}
			if keep && len(data) <= largest {
				data = bytes.Clone(data)
				s.cache.put(k, version, data)
			}
		}
		held += len(data)
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	_, err := w.WriteString("]}\n")
	return err
}

func untyped(o item) bool {
	r, ok := o.(runtime.Object)
	if !ok {
		return false
	}
	t, ok := r.GetObjectKind().(*metav1.TypeMeta)
	return ok && *t == metav1.TypeMeta{}
}
