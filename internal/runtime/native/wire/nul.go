package wire

import (
	"bytes"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// RefuseNUL rejects a message of CRI with a NUL in one of its strings. The error names the field
// and never the value, which may be secret.
func RefuseNUL(m proto.Message) error {
	if at := findNUL(m.ProtoReflect()); at != "" {
		return status.Errorf(codes.InvalidArgument, "%s: %v", at, ErrNUL)
	}
	return nil
}

// findNUL returns the name of the first field with a NUL, "" for none. Labels and annotations reach
// neither the kernel nor C, and Kubernetes allows any text in annotations.
func findNUL(m protoreflect.Message) (at string) {
	in := func(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
		switch f.Kind() {
		case protoreflect.MessageKind:
			if below := findNUL(v.Message()); below != "" {
				return "." + below
			}
			return ""
		case protoreflect.StringKind:
			if strings.IndexByte(v.String(), 0) < 0 {
				return ""
			}
		case protoreflect.BytesKind:
			if bytes.IndexByte(v.Bytes(), 0) < 0 {
				return ""
			}
		default:
			return ""
		}
		return " "
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		found := ""
		switch {
		case name == "labels" || name == "annotations":
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if strings.IndexByte(k.String(), 0) >= 0 {
					found = " "
				} else {
					found = in(f.MapValue(), v)
				}
				return found == ""
			})
		case f.IsList():
			for i := 0; i < v.List().Len() && found == ""; i++ {
				found = in(f, v.List().Get(i))
			}
		default:
			found = in(f, v)
		}
		if found != "" {
			at = name + strings.TrimSpace(found)
		}
		return found == ""
	})
	return at
}
