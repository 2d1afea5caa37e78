package apiserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_* metrics: the requests of carob's own parts
	_ "k8s.io/component-base/metrics/prometheus/version"    // kubernetes_build_info

	carobstorage "carob/internal/apiserver/storage"
)

// countTime is the time limit for counting objects for one answer.
const countTime = 2 * time.Second

// measured updates the metrics that are not counted when something happens, on request.
// kube-apiserver has a goroutine per kind for that.
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

// featureMetrics reports which features are enabled, as kubernetes_feature_enabled.
var featureMetrics = sync.OnceFunc(func() { utilfeature.DefaultMutableFeatureGate.AddMetrics() })

func (s *Server) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	for gr := range s.stores {
		n, err := s.options.Count(ctx, gr)
		etcdmetrics.UpdateStoreStats(gr, storage.Stats{ObjectCount: n}, err)
	}
	s.allocator.Measure(ctx)
	s.ext.flow.Measure()
	featureMetrics()
	if s.cfg.Measure != nil {
		s.cfg.Measure()
	}
}
