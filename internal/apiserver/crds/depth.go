package crds

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxDepth is how deep an object in protobuf may be nested: as deep as in JSON.
const maxDepth = 10_000

// Serializer reads and writes definitions. Their schemas are the only recursive type of the API:
// half a megabyte of protobuf can be nested so deep that the library, which is recursive, would
// overflow the stack.
func Serializer() runtime.NegotiatedSerializer {
	return shallow{apiextensionsapiserver.Codecs}
}

type shallow struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s shallow) SupportedMediaTypes() []runtime.SerializerInfo {
	infos := slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType != runtime.ContentTypeProtobuf {
			continue
		}
		infos[i].Serializer = shallowSerializer{infos[i].Serializer}
		if infos[i].StrictSerializer != nil {
			infos[i].StrictSerializer = shallowSerializer{infos[i].StrictSerializer}
		}
	}
	return infos
}

type shallowSerializer struct{ runtime.Serializer }

// Decode implements runtime.Decoder.
func (s shallowSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object,
	*schema.GroupVersionKind, error) {
	if depth(bytes.TrimPrefix(data, []byte("k8s\x00")), maxDepth) > maxDepth {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the object is nested deeper than %d levels", maxDepth))
	}
	return s.Serializer.Decode(data, defaults, into)
}

// depth returns how deep messages in data may be nested, at most limit+1. Any field with a length
// counts as a message as long as it can be parsed as one, even if it is a string.
func depth(data []byte, limit int) (deepest int) {
	ends := []int{len(data)} // where the open messages end
	skip := func() int {     // it is complete, or not a message: continue after it
		end := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		return end
	}
	for i := 0; len(ends) > 0; {
		end := ends[len(ends)-1]
		if i >= end { // a number that does not fit ends there, too
			i = skip()
			continue
		}
		tag, n := binary.Uvarint(data[i:end])
		if n <= 0 || tag>>3 == 0 {
			i = skip()
			continue
		}
		i += n
		switch tag & 7 {
		case 0:
			if _, n = binary.Uvarint(data[i:end]); n <= 0 {
				i = skip()
				continue
			}
			i += n
		case 1:
			i += 8
		case 5:
			i += 4
		case 2:
			size, n := binary.Uvarint(data[i:end])
			if n <= 0 || size > uint64(end-i-n) {
				i = skip()
				continue
			}
			i += n
			ends = append(ends, i+int(size))
			if deepest = max(deepest, len(ends)-1); deepest > limit {
				return deepest
			}
		default:
			i = skip()
		}
	}
	return deepest
}
