package lists

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	libraryserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
)

func codecs(t testing.TB) runtime.NegotiatedSerializer {
	t.Helper()
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return libraryserializer.NewCodecFactory(s, libraryserializer.WithStreamingCollectionEncodingToProtobuf(),
		libraryserializer.WithStreamingCollectionEncodingToJSON())
}

// encode encodes o like the server.
func encode(t testing.TB, n runtime.NegotiatedSerializer, o runtime.Object, w io.Writer) error {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(n.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	e, ok := n.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).(runtime.EncoderWithAllocator)
	if !ok {
		t.Fatal("the encoder takes no allocator")
	}
	return e.EncodeWithAllocator(o, w, &runtime.Allocator{})
}

func encodeJSON(t testing.TB, n runtime.NegotiatedSerializer, o runtime.Object, w io.Writer) error {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(n.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		t.Fatal("no JSON")
	}
	return n.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(o, w)
}

var formats = map[string]func(testing.TB, runtime.NegotiatedSerializer, runtime.Object,
	io.Writer) error{"protobuf": encode, "JSON": encodeJSON}

func pods(n int, version string) *corev1.PodList {
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: "more",
		RemainingItemCount: new(int64(3))}}
	for i := range n {
		l.Items = append(l.Items,
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i)),
				ResourceVersion: version,
				ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1("{}")}}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: strings.Repeat("i", i*7)}}}})
	}
	return l
}

// Whatever was listed before, a list is encoded as by the library.
func TestAsTheLibrary(t *testing.T) {
	plain := codecs(t)
	ours := Serializer(plain, &Cache{})
	many := pods(300, "7")
	changed := pods(300, "7")
	for i := range changed.Items {
		if i%3 == 0 {
			changed.Items[i].ResourceVersion, changed.Items[i].Labels = "8", map[string]string{"new": "er"}
		}
	}
	big := pods(30, "9")
	big.Items[4].Annotations = map[string]string{"big": strings.Repeat("x", largest)}
	nameless := pods(30, "")
	nameless.Items[3].UID = ""
	maps := &corev1.ConfigMapList{}
	for i := range 50 { // the same identities, of another kind
		maps.Items = append(maps.Items,
			corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint("u", i)), ResourceVersion: "7"},
				Data: map[string]string{"b": "c", "a": "b"}})
	}
	huge := &corev1.ConfigMapList{} // more than a list may hold
	for i := range 300 {
		huge.Items = append(huge.Items,
			corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint("h", i)), ResourceVersion: "7"},
				Data: map[string]string{"x": strings.Repeat("y", largest-1000)}})
	}
	typed := pods(300, "7")
	for i := range typed.Items {
		typed.Items[i].TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		typed.Items[i].Annotations = map[string]string{"<&>": "\u2028\xff\n"}
		typed.Items[i].ResourceVersion = "17"
	}
	withKind := pods(300, "7") // the same, but each contains its kind
	for i := range withKind.Items {
		withKind.Items[i].TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	}
	for i, o := range []runtime.Object{many, typed, withKind, many, many, changed, many, changed, pods(0, "1"),
		pods(3, "7"), big, big, nameless, nameless, maps, maps, huge, huge,
		&many.Items[0], &metav1.Status{Reason: "r"}, &corev1.List{Items: make([]runtime.RawExtension, 30)}} {
		for format, encode := range formats {
			var want, got bytes.Buffer
			if err := errors.Join(encode(t, plain, o, &want), encode(t, ours, o, &got)); err != nil {
				t.Fatal(i, format, err)
			}
			if !bytes.Equal(want.Bytes(), got.Bytes()) {
				t.Errorf("%d: a %T of %d bytes of %s differs from the library's of %d", i, o, got.Len(), format,
					want.Len())
			}
		}
	}
}

// The object records how often it is encoded: by its type, identity, and version.
func TestEncodedOnce(t *testing.T) {
	for format, encode := range formats {
		t.Run(format, func(t *testing.T) {
			k := &Cache{}
			ours := Serializer(codecs(t), k)
			l := pods(100, "1")
			if err := encode(t, ours, l, io.Discard); err != nil {
				t.Fatal(err)
			}
			var first, second bytes.Buffer
			_ = encode(t, ours, l, &first)
			for i := range l.Items { // not allowed; here it shows what is used
				l.Items[i].Name = "other"
			}
			_ = encode(t, ours, l, &second)
			if !bytes.Equal(first.Bytes(), second.Bytes()) {
				t.Error("objects of a known version were encoded again")
			}
			for i := range l.Items {
				l.Items[i].ResourceVersion = "2"
			}
			second.Reset()
			_ = encode(t, ours, l, &second)
			if n := bytes.Count(second.Bytes(), []byte("other")); n != 100 {
				t.Errorf("%d of 100 objects are in their new version", n)
			}
		})
	}
}

func TestUnusedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Cache{}
		used, unused := key{uid: "used"}, key{uid: "unused"}
		k.put(used, "1", []byte("u"))
		k.put(unused, "1", []byte("n"))
		for range 5 {
			time.Sleep(cachedFor)
			synctest.Wait()
			if k.get(used, "1") == nil {
				t.Fatal("what is used is forgotten")
			}
		}
		if k.get(unused, "1") != nil {
			t.Error("what nobody uses is kept")
		}
		time.Sleep(3 * cachedFor)
		synctest.Wait()
		if k.now != nil || k.before != nil || k.size != 0 || k.timer != nil {
			t.Errorf("left: %d and %d entries of %d bytes", len(k.now), len(k.before), k.size)
		}
		k.put(used, "1", []byte("u")) // and again
		time.Sleep(3 * cachedFor)
		synctest.Wait()
		if k.timer != nil || k.get(used, "1") != nil {
			t.Error("kept for ever the second time")
		}
	})
}

func TestClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Cache{}
		a, b := key{uid: "a"}, key{uid: "b"}
		k.put(a, "1", []byte("a"))
		time.Sleep(cachedFor)
		synctest.Wait()
		k.put(b, "1", []byte("b"))
		k.Clear()
		if k.Len() != 0 || k.size != 0 || k.get(a, "1") != nil || k.get(b, "1") != nil {
			t.Errorf("left: %d entries of %d bytes", k.Len(), k.size)
		}
		k.put(a, "2", []byte("a")) // is cached, and forgotten, as before
		if k.get(a, "2") == nil {
			t.Error("nothing is cached any more")
		}
		time.Sleep(3 * cachedFor)
		synctest.Wait()
		if k.timer != nil || k.Len() != 0 {
			t.Errorf("left: %d entries", k.Len())
		}
	})
}

func TestKeptIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Cache{}
		for i := range 3000 {
			k.put(key{uid: types.UID(fmt.Sprint(i % 2000))}, fmt.Sprint(i), make([]byte, largest))
			sum := 0
			for _, m := range []map[key]encoded{k.now, k.before} {
				for _, e := range m {
					sum += entrySize + len(e.data)
				}
			}
			if sum > 2*generation {
				t.Fatalf("%d bytes are kept after %d", sum, i)
			}
		}
		time.Sleep(3 * cachedFor)
	})
}

// failing accepts some bytes, then fails.
type failing struct{ room int }

func (f *failing) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

func TestClientGoesAway(t *testing.T) {
	ours := Serializer(codecs(t), &Cache{})
	for _, room := range []int{0, 4, 5, chunk, 2 * chunk} {
		for format, encode := range formats {
			if err := encode(t, ours, pods(2000, "1"), &failing{room}); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%s: %d bytes taken: %v", format, room, err)
			}
		}
	}
}

func TestOtherCodecsAreTheLibrarys(t *testing.T) {
	plain := codecs(t)
	ours := Serializer(plain, &Cache{})
	for i, info := range ours.SupportedMediaTypes() {
		want := plain.SupportedMediaTypes()[i]
		_, protobuf := info.Serializer.(serializer)
		_, json := info.Serializer.(jsonSerializer)
		if protobuf != (info.MediaType == runtime.ContentTypeProtobuf) ||
			json != (info.MediaType == runtime.ContentTypeJSON) || info.MediaType != want.MediaType {
			t.Errorf("%s: %T", info.MediaType, info.Serializer)
		}
		if info.Serializer.Identifier() != want.Serializer.Identifier() {
			t.Errorf("%s has another name", info.MediaType)
		}
	}
}

func BenchmarkList(b *testing.B) {
	plain := codecs(b)
	for name, n := range map[string]runtime.NegotiatedSerializer{"library": plain,
		"cached": Serializer(plain, &Cache{})} {
		for format, encode := range formats {
			b.Run(format+"/"+name, func(b *testing.B) {
				l := pods(1000, "1")
				b.ReportAllocs()
				for b.Loop() {
					if err := encode(b, n, l, io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
