package bootstrap

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/inventory"
)

func token(id string, end time.Time) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
		Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
			"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-signing": []byte("true")}}
	if !end.IsZero() {
		s.Data["expiration"] = []byte(end.UTC().Format(time.RFC3339))
	}
	return s
}

func clusterInfo(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: data}
}

func deliver(c *Controller, resource string, o metav1.Object) {
	c.Changed(inventory.Kind{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: resource}},
		&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}})
}

func anInventory() *inventory.Inventory {
	return inventory.New(discovery.NewDiscoveryClient(nil), nil, 0)
}

func TestTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		day, forever := token("aaaaaa", time.Now().Add(24*time.Hour)), token("bbbbbb", time.Time{})
		broken, other := token("cccccc", time.Time{}), token("dddddd", time.Now().Add(-time.Hour))
		broken.Data["expiration"] = []byte("soon")
		other.Type = corev1.SecretTypeOpaque
		client := fake.NewClientset(day, forever, broken, other)
		controllertest.FailOnce(client, "delete", "secrets", // of a webhook
			apierrors.NewConflict(corev1.Resource("secrets"), broken.Name, errors.New("no")))
		c := NewCleaner(client, anInventory())
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		go c.Run(ctx)
		for _, s := range []*corev1.Secret{day, forever, broken, other} {
			deliver(c, "secrets", s)
		}
		there := func(s *corev1.Secret) bool {
			_, err := client.CoreV1().Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return err == nil
		}
		time.Sleep(time.Second)
		if !there(day) || !there(forever) || there(broken) || !there(other) {
			t.Errorf("at first: %v %v %v %v", there(day), there(forever), there(broken), there(other))
		}
		time.Sleep(24*time.Hour - 2*time.Second)
		if !there(day) {
			t.Error("removed too early")
		}
		time.Sleep(3 * time.Second)
		if there(day) || !there(forever) {
			t.Errorf("after a day: %v %v", there(day), there(forever))
		}
	})
}

func TestClusterInfoIsSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const content = "apiVersion: v1\nkind: Config\n"
		short, long := token("aaaaaa", time.Now().Add(time.Hour)), token("bbbbbb", time.Time{})
		silent, misnamed := token("cccccc", time.Time{}), token("dddddd", time.Time{})
		delete(silent.Data, "usage-bootstrap-signing")
		misnamed.Data["token-id"] = []byte("eeeeee")
		info := clusterInfo(map[string]string{"kubeconfig": content, "jws-kubeconfig-zzzzzz": "of a token that is gone",
			"note": "kept"})
		client := fake.NewClientset(short, long, silent, misnamed, info)
		controllertest.FailOnce(client, "update", "configmaps", // of a webhook
			apierrors.NewNotFound(corev1.Resource("configmaps"), info.Name))
		c := NewSigner(client, anInventory())
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		go c.Run(ctx)
		keys := func() []string {
			time.Sleep(time.Second)
			m, err := client.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			info = m
			return slices.Sorted(maps.Keys(m.Data))
		}
		deliver(c, "configmaps", info)
		if got := keys(); !slices.Equal(got,
			[]string{"jws-kubeconfig-aaaaaa", "jws-kubeconfig-bbbbbb", "kubeconfig", "note"}) {
			t.Fatalf("%v", got)
		}
		head, signature, _ := strings.Cut(info.Data["jws-kubeconfig-bbbbbb"], "..")
		sum, err := base64.RawURLEncoding.DecodeString(signature)
		if err != nil {
			t.Fatal(err)
		}
		enc := base64.RawURLEncoding.EncodeToString
		if err := jwt.SigningMethodHS256.Verify(head+"."+enc([]byte(content)), sum,
			[]byte("0123456789abcdef")); err != nil {
			t.Errorf("the signature: %v", err)
		}
		if h, err := base64.RawURLEncoding.DecodeString(head); err != nil ||
			string(h) != `{"alg":"HS256","kid":"bbbbbb"}` {
			t.Errorf("header %s %v", h, err)
		}
		writes := len(client.Actions())
		deliver(c, "configmaps", info)
		keys()
		if slices.ContainsFunc(client.Actions()[writes:],
			func(a ktesting.Action) bool { return a.GetVerb() == "update" }) {
			t.Error("written again without a change")
		}
		time.Sleep(time.Hour + time.Second)
		if got := keys(); !slices.Equal(got, []string{"jws-kubeconfig-bbbbbb", "kubeconfig", "note"}) {
			t.Errorf("after the end of a token: %v", got)
		}
		if err := client.CoreV1().Secrets(long.Namespace).Delete(ctx, long.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		deliver(c, "secrets", long)
		if got := keys(); !slices.Equal(got, []string{"kubeconfig", "note"}) {
			t.Errorf("after the last token: %v", got)
		}
	})
}
