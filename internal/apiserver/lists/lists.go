// Package lists encodes lists of objects as protobuf and JSON like the library, byte for byte, but
// encodes each object once for several lists: encoding the objects is most of the cost of a list.
package lists

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// The library encodes shorter lists: they cost little.
	shortest = 20
	// Larger objects are encoded each time.
	largest = 64 << 10
	// Written at once. A gzip writer is slower with single objects.
	chunk = 32 << 10
)

// prefix precedes each object in protobuf. It is written alone: by such a short first write, the
// library recognizes a list in parts, which it compresses by the length of all.
var prefix = []byte("k8s\x00")

// The fields of a list with their protobuf tags: metadata 1, items 2, both bytes.
const (
	metaTag   = 0x0a
	itemTag   = 0x12
	metaField = "bytes,1,opt,name=metadata"
	itemField = "bytes,2,rep,name=items"
)

// Serializer returns codecs that encode lists in protobuf and JSON with a cache.
func Serializer(codecs runtime.NegotiatedSerializer, cache *Cache) runtime.NegotiatedSerializer {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if inner, ok := infos[i].Serializer.(library); ok && infos[i].MediaType == runtime.ContentTypeProtobuf {
			infos[i].Serializer = serializer{inner, cache}
		}
		if infos[i].MediaType == runtime.ContentTypeJSON {
			infos[i].Serializer = jsonSerializer{infos[i].Serializer, cache}
		}
	}
	return negotiated{codecs, infos}
}

type negotiated struct {
	runtime.NegotiatedSerializer
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (n negotiated) SupportedMediaTypes() []runtime.SerializerInfo { return n.infos }

// library is the library's serializer of protobuf.
type library interface {
	runtime.Serializer
	runtime.EncoderWithAllocator
}

type serializer struct {
	library
	cache *Cache
}

// Encode implements runtime.Encoder.
func (s serializer) Encode(o runtime.Object, w io.Writer) error {
	return s.EncodeWithAllocator(o, w, &runtime.SimpleAllocator{})
}

// EncodeWithAllocator implements runtime.EncoderWithAllocator.
func (s serializer) EncodeWithAllocator(o runtime.Object, w io.Writer, room runtime.MemoryAllocator) error {
	l, ok := listOf(o)
	if !ok {
		return s.library.EncodeWithAllocator(o, w, room)
	}
	return s.encode(l, w, room)
}

// item is an object of a list.
type item interface {
	metav1.Object
	runtime.ProtobufReverseMarshaller
}

// list is a list of objects seen through reflection.
type list struct {
	runtime.TypeMeta
	of    reflect.Type // the structure
	meta  *metav1.ListMeta
	items reflect.Value // slice of structures whose pointers are items
}

var itemType = reflect.TypeFor[item]()

// listOf returns a list that is long enough and has the structure of all lists.
func listOf(o runtime.Object) (l list, ok bool) {
	v := reflect.ValueOf(o)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || v.Elem().NumField() != 3 {
		return l, false
	}
	v = v.Elem()
	t := v.Type()
	_, typed := reflect.TypeAssert[metav1.TypeMeta](v.Field(0))
	meta, described := reflect.TypeAssert[*metav1.ListMeta](v.Field(1).Addr())
	l.of, l.meta, l.items = t, meta, v.Field(2)
	if !typed || !described || t.Field(0).Tag.Get("protobuf") != "" || t.Field(1).Tag.Get("protobuf") != metaField ||
		t.Field(2).Tag.Get("protobuf") != itemField {
		return l, false
	}
	if l.items.Kind() != reflect.Slice || l.items.Len() < shortest ||
		!reflect.PointerTo(l.items.Type().Elem()).Implements(itemType) {
		return l, false
	}
	kind := o.GetObjectKind().GroupVersionKind()
	l.Kind, l.APIVersion = kind.Kind, kind.GroupVersion().String()
	return l, true
}

func (l list) item(i int) item {
	return l.items.Index(i).Addr().Interface().(item)
} //nolint:forcetypeassert // listOf has looked

// part is an encoded object, or its future length.
type part struct {
	data []byte // nil if it is still to be encoded
	size int
}

func (s serializer) encode(l list, w io.Writer, room runtime.MemoryAllocator) error {
	meta, err := l.meta.Marshal()
	if err != nil {
		return err
	}
	parts := make([]part, l.items.Len())
	size := 1 + varint(len(meta)) + len(meta)
	held := 0
	for i := range parts {
		// The encoded objects that a list holds at once are limited; the rest is encoded while it
		// is sent.
		if parts[i], err = s.part(l.item(i), held < generation); err != nil {
			return err
		}
		held += len(parts[i].data)
		size += 1 + varint(parts[i].size) + parts[i].size
	}
	if _, err := w.Write(prefix); err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(w, chunk)
	unknown := runtime.Unknown{TypeMeta: l.TypeMeta}
	if _, err := unknown.MarshalToWriter(buffered, size,
		func(w io.Writer) (int, error) { return l.write(w, meta, parts, room) }); err != nil {
		return err
	}
	return buffered.Flush()
}

// part returns an object of a list, encoded if it may be cached.
func (s serializer) part(o item, keep bool) (part, error) {
	k, version := key{reflect.TypeOf(o), o.GetUID(), false}, o.GetResourceVersion()
	keep = keep && k.uid != "" && version != ""
	if keep {
		if data := s.cache.get(k, version); data != nil {
			return part{data, len(data)}, nil
		}
	}
	size := o.Size()
	if !keep || size > largest {
		return part{nil, size}, nil
	}
	data := make([]byte, size)
	if err := marshal(o, data); err != nil {
		return part{}, err
	}
	s.cache.put(k, version, data)
	return part{data, size}, nil
}

// marshal encodes an object of the size of data.
func marshal(o item, data []byte) error {
	n, err := o.MarshalToSizedBuffer(data)
	if err == nil && n != len(data) {
		err = fmt.Errorf("%T reports a size of %d bytes, but its encoding has %d", o, len(data), n)
	}
	return err
}

// write writes the fields of the list and returns their length.
func (l list) write(w io.Writer, meta []byte, parts []part, room runtime.MemoryAllocator) (int, error) {
	head := make([]byte, 0, 1+binary.MaxVarintLen64)
	written := 0
	field := func(tag byte, data []byte) error {
		for _, b := range [][]byte{binary.AppendUvarint(append(head[:0], tag), uint64(len(data))), data} {
			n, err := w.Write(b)
			written += n
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := field(metaTag, meta); err != nil {
		return written, err
	}
	for i, p := range parts {
		if p.data == nil {
			p.data = room.Allocate(uint64(p.size))[:p.size]
			if err := marshal(l.item(i), p.data); err != nil {
				return written, err
			}
		}
		if err := field(itemTag, p.data); err != nil {
			return written, err
		}
	}
	return written, nil
}

// varint returns how many bytes a length needs.
func varint(n int) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], uint64(n))
}
