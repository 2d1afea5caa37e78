package admission

import (
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Namespaces come and go with their quotas, one after the other: nothing of them stays for ever, and the newest write
// is known until the cache has it.
func TestWrittenQuotasAreForgotten(t *testing.T) {
	a := &quotaAccess{written: map[string]*corev1.ResourceQuota{}}
	quota := func(i, version int) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns" + strconv.Itoa(i), Name: "q",
			UID: types.UID(strconv.Itoa(i)), ResourceVersion: strconv.Itoa(version)}}
	}
	for i := range 3 * mostWritten {
		wrote := quota(i, 11)
		a.keep(wrote)
		if len(a.written) > mostWritten {
			t.Fatalf("%d written quotas are kept", len(a.written))
		}
		if got := a.newest(quota(i, 10)); got != wrote {
			t.Fatalf("the cache is behind, and version %s is the newest", got.ResourceVersion)
		}
	}
	last := quota(3*mostWritten-1, 12)
	if got := a.newest(last); got != last {
		t.Errorf("the cache has a newer version, and %s is the newest", got.ResourceVersion)
	}
	if _, kept := a.written["ns"+strconv.Itoa(3*mostWritten-1)+"/q"]; kept {
		t.Error("what the cache has is kept, too")
	}
}
