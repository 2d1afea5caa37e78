package apiserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*: the requests of carob's own parts
	_ "k8s.io/component-base/metrics/prometheus/version"    // kubernetes_build_info

	carobstorage "carob/internal/apiserver/storage"
)

// countTime bounds the counting of objects for one answer.
const countTime = 2 * time.Second

// measured brings the figures up to date that are not counted as things happen,
// when somebody asks for them. kube-apiserver does so by a goroutine per kind.
func (s *Server) measured(next http.Handler) http.Handler {
	etcdmetrics.SetStorageMonitorGetter(func() ([]etcdmetrics.Monitor, error) {
		return []etcdmetrics.Monitor{carobstorage.Monitor{Engine: s.engine}}, nil
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			s.measure(r.Context())
		}
		next.ServeHTTP(w, r)
	})
}

// featureFigures says which features are on, as kubernetes_feature_enabled.
var featureFigures = sync.OnceFunc(func() { utilfeature.DefaultMutableFeatureGate.AddMetrics() })

func (s *Server) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	for gr := range s.stores {
		n, err := s.options.Count(ctx, gr)
		etcdmetrics.UpdateStoreStats(gr, storage.Stats{ObjectCount: n}, err)
	}
	s.allocator.Measure(ctx)
	s.ext.flow.Measure()
	featureFigures()
	if s.cfg.Measure != nil {
		s.cfg.Measure()
	}
}
