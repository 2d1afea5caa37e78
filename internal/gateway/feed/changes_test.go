package feed

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A ConfigMap with CAs is followed, also when it goes, and one with a configuration of the picker, which may have both.
// The CAs of the cluster, which each namespace has, are not kept.
func TestConfigMapChanges(t *testing.T) {
	made := func(of, version string, keys ...string) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: of, ResourceVersion: version},
			Data: map[string]string{}}
		for _, k := range keys {
			m.Data[k] = "x"
		}
		return m
	}
	cas, both, other := made("m", "1", caKey), made("m", "2", caKey, pickerConfigKey), made("m", "3", "other")
	for what, c := range map[string]struct {
		before, after *corev1.ConfigMap
		config, noted bool
	}{
		"new CAs":                {after: cas, noted: true},
		"other CAs":              {before: cas, after: made("m", "4", caKey), noted: true},
		"CAs go":                 {before: cas, noted: true},
		"CAs go, the rest stays": {before: cas, after: other, noted: true},
		"a configuration":        {after: both, config: true, noted: true},
		"a configuration comes":  {before: cas, after: both, config: true, noted: true},
		"a configuration goes":   {before: both, after: cas, config: true, noted: true},
		"of the cluster":         {after: made("kube-root-ca.crt", "1", caKey)},
		"neither":                {before: other, after: other},
	} {
		f := New(Config{Client: fake.NewClientset()})
		f.declare(nil)
		if c.before != nil {
			f.configMaps.put(c.before)
		}
		f.plan, f.inference.changed, f.changes.CAs = false, false, nil
		if c.after != nil {
			f.configMaps.put(c.after)
		} else {
			f.configMaps.drop(nameOf(c.before))
		}
		now, noted := f.changes.CAs[name{Namespace: "ns", Name: "m"}]
		if f.plan || f.inference.changed != c.config || noted != c.noted {
			t.Errorf("%s: a new plan: %v, a configuration: %v, noted: %v", what, f.plan, f.inference.changed, noted)
		}
		if gone := c.after == nil || c.after == other; noted && gone != (now == nil) {
			t.Errorf("%s: %+v", what, now)
		}
	}
}
