package revision

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func template(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}},
			NodeSelector:                  map[string]string{"z": "1", "a": "2"},
			TerminationGracePeriodSeconds: ptr.To[int64](30)},
	}
}

// W3.21, W12.40: only the template, sorted keys, `$patch`, no time of creation.
func TestData(t *testing.T) {
	got, err := Data(template("nginx"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"image":"nginx",` +
		`"name":"c","resources":{}}],"nodeSelector":{"a":"2","z":"1"},"terminationGracePeriodSeconds":30}}}}`
	if string(got) != want {
		t.Errorf("data is\n%s, want\n%s", got, want)
	}
	big := template("nginx")
	big.Spec.TerminationGracePeriodSeconds = ptr.To[int64](math.MaxInt64)
	data, err := Data(big)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Restore(template("other"), data)
	if err != nil || *back.Spec.TerminationGracePeriodSeconds != math.MaxInt64 {
		t.Errorf("a large number comes back as %v, %v", back, err)
	}
}

func randomTemplate(t *rapid.T, label string) *corev1.PodTemplateSpec {
	p := template(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, label+" image"))
	p.Labels = rapid.MapOf(rapid.StringMatching(`[a-z]{1,3}`), rapid.StringMatching(`[a-z]{0,3}`)).Draw(t,
		label+" labels")
	p.Annotations = rapid.MapOf(rapid.StringMatching(`[a-z$]{1,8}`), rapid.String()).Draw(t, label+" annotations")
	for i := range rapid.IntRange(0, 3).Draw(t, label+" containers") {
		p.Spec.Containers = append(p.Spec.Containers,
			corev1.Container{Name: fmt.Sprint("x", i), Image: rapid.StringMatching(`[a-z<>&]{1,4}`).Draw(t, label)})
	}
	p.Spec.TerminationGracePeriodSeconds = new(rapid.Int64Min(0).Draw(t, label+" grace"))
	return p
}

// Restore restores the template that Data wrote, independent of later changes of the owner (W3.23,
// W12.40).
func TestRestoreAfterRandomChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := randomTemplate(t, "before"), randomTemplate(t, "after")
		data, err := Data(before)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Restore(after, data)
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(back, before) {
			t.Fatalf("came back as %v, was %v", back, before)
		}
		again, err := Data(back)
		if err != nil || string(again) != string(data) {
			t.Fatalf("written again: %s, %v; was %s", again, err, data)
		}
	})
}

func TestRestoreRejectsInvalidData(t *testing.T) {
	for _, data := range []string{``, `null`, `[]`, `{"spec":7}`, `{"spec":{"template":"x"}}`,
		`{"spec":{"template":{"spec":{"containers":7}}}}`, `{`} {
		if got, err := Restore(template("a"), []byte(data)); err == nil &&
			!equality.Semantic.DeepEqual(got, template("a")) {
			t.Errorf("%q makes %v", data, got)
		}
	}
}

func FuzzRestore(f *testing.F) {
	data, _ := Data(template("nginx"))
	f.Add(data)
	f.Add([]byte(`{"spec":{"template":{"spec":{"$patch":"delete","containers":[{"$patch":"delete","name":"c"}]}}}}`))
	f.Add([]byte(`{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"q"}],"$retainKeys":["x"]}}}}`))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = Restore(template("a"), data) }) // it must not panic
}

// W0.62, W0.63: the alphabet, at most ten characters, other with a collision, and W3.20: the name fits.
func TestHashes(t *testing.T) {
	good := regexp.MustCompile(`^[456789bcdf]{1,10}$`)
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		zero, none, one := Hash(data, ptr.To[int32](0)), Hash(data, nil), Hash(data, ptr.To[int32](1))
		for _, h := range []string{zero, none, one} {
			if !good.MatchString(h) {
				t.Fatalf("hash %q", h)
			}
		}
		if zero == one {
			t.Fatalf("a collision has no effect: %s", one)
		}
		if name := Name(strings.Repeat("n", rapid.IntRange(1, 253).Draw(t, "length")), none); len(name) > 253 {
			t.Fatalf("%d characters", len(name))
		}
	})
	// FNV-1 of the bytes and of the decimal count, computed by hand.
	if got := Hash([]byte("x"), ptr.To[int32](0)); got != "5944fc7777" {
		t.Errorf("Hash: %s", got)
	}
}

func TestSorted(t *testing.T) {
	r := func(name string, number, at int64) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name,
			CreationTimestamp: metav1.Unix(at, 0)}, Revision: number}
	}
	var names []string
	list := []*appsv1.ControllerRevision{r("d", 3, 1), r("c", 2, 9), r("b", 2, 9), r("a", 2, 10), r("e", 1, 11)}
	for _, x := range Sorted(list) {
		names = append(names, x.Name)
	}
	if got := strings.Join(names, ""); got != "ebcad" {
		t.Errorf("order %s", got)
	}
	if list[0].Name != "d" || Highest(list) != 3 || Highest(nil) != 0 {
		t.Errorf("the input was changed, or the highest number is wrong")
	}
}
