package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"carob/internal/base/pki"
)

// storeTrust maintains the config map from which other API servers read the CAs to trust.
func (s *Server) storeTrust(ctx context.Context) error {
	proxy, err := s.cfg.PKI.FrontProxy(time.Now())
	if err != nil {
		return err
	}
	list := func(v ...string) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(fmt.Sprintf("apiserver: a list of strings: %v", err))
		}
		return string(b)
	}
	want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication",
		Namespace: metav1.NamespaceSystem}, Data: map[string]string{
		"client-ca-file":                     string(s.cfg.PKI.CAPEM),
		"requestheader-client-ca-file":       string(proxy.CAPEM),
		"requestheader-allowed-names":        list(pki.FrontProxyName),
		"requestheader-username-headers":     list("X-Remote-User"),
		"requestheader-uid-headers":          list("X-Remote-Uid"),
		"requestheader-group-headers":        list("X-Remote-Group"),
		"requestheader-extra-headers-prefix": list("X-Remote-Extra-"),
	}}
	st := s.stores[corev1.Resource("configmaps")]
	ctx = apirequest.WithNamespace(ctx, want.Namespace)
	if o, err := st.Get(ctx, want.Name, &metav1.GetOptions{}); err == nil {
		if m, ok := o.(*corev1.ConfigMap); ok && equality.Semantic.DeepEqual(m.Data, want.Data) {
			return nil
		}
	}
	return upsert(ctx, st, want, func(o *corev1.ConfigMap) bool {
		o.Data = want.Data
		return true
	})
}
