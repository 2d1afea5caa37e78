package static

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"carob/internal/base/atomicfile"
)

// WebConfig is the URL of static pods and the receiver of the pods (S14.10).
type WebConfig struct {
	URL    string
	Header map[string][]string // of each request
	Every  time.Duration       // between two requests; 0: 20 s
	Node   string              // name of the node
	// Cache is a file for the last valid response, so that running pods stay if carob starts while the server does not
	// respond.
	Cache    string
	Complete func(*corev1.Pod) error // as of SourceConfig
	// Wanted gets all pods of the URL: at the start, and after each change.
	Wanted func([]*corev1.Pod)
}

const (
	webPeriod         = 20 * time.Second
	webTimeout        = 10 * time.Second
	webFailuresLogged = 3 // consecutive failures that are logged
)

// WebSource reads static pods from a URL, a Pod or a PodList. An invalid response changes nothing.
type WebSource struct {
	cfg    WebConfig
	client http.Client
	last   []byte // the last valid response; nil: none yet
	unkept bool   // the last valid response could not be stored
	failed int    // consecutive
}

// NewWebSource returns a WebSource; nothing is requested before Run.
func NewWebSource(cfg WebConfig) *WebSource {
	if cfg.Every <= 0 {
		cfg.Every = webPeriod
	}
	return &WebSource{cfg: cfg, client: http.Client{Timeout: webTimeout}}
}

// Run requests the URL periodically until ctx ends.
func (s *WebSource) Run(ctx context.Context) error {
	if err := s.look(ctx); err != nil {
		s.logFailure(ctx, err)
		if err := s.passOn(); err != nil {
			return err // continuing without them would end running pods
		}
	}
	t := time.NewTicker(s.cfg.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.logFailure(ctx, err)
		} else if err == nil && s.failed > 0 {
			s.failed = 0
			klog.FromContext(ctx).Info("Successfully read pods from URL", "url", s.cfg.URL)
		}
	}
}

// logFailure logs the first consecutive failures (S14.12).
func (s *WebSource) logFailure(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	switch s.failed++; {
	case s.failed <= webFailuresLogged:
		log.Error(err, "Static pods cannot be read from their URL; they stay as they are")
	case s.failed == webFailuresLogged+1:
		log.Error(err, "Static pods cannot be read from their URL. Dropping verbosity of this message to V(4)")
	default:
		log.V(4).Info("Static pods cannot be read from their URL", "err", err)
	}
}

// look requests the URL once, and passes on the pods if the response differs from the previous one.
func (s *WebSource) look(ctx context.Context) error {
	text, err := s.fetch(ctx)
	if err != nil {
		return err
	}
	if s.last != nil && string(text) == string(s.last) {
		if s.unkept {
			s.keep(ctx, text)
		}
		return nil
	}
	pods, err := s.decode(text)
	if err != nil {
		return err
	}
	s.last = text
	s.cfg.Wanted(pods)
	s.keep(ctx, text)
	return nil
}

// keep stores a response that is applied, for the next start. If that fails, as on a full disk, the next requests
// repeat it; only the first failure is logged.
func (s *WebSource) keep(ctx context.Context, text []byte) {
	if s.cfg.Cache == "" {
		return
	}
	err := atomicfile.Write(s.cfg.Cache, text, 0o600)
	if err != nil && !s.unkept {
		klog.FromContext(ctx).Error(err, "The static pods of a URL cannot be stored; carob tries again. "+
			"A start while the URL does not respond would use older ones", "url", s.cfg.URL)
	}
	s.unkept = err != nil
}

// passOn passes on the pods of the last valid response; none if there is none.
func (s *WebSource) passOn() error {
	if s.cfg.Cache == "" {
		s.cfg.Wanted(nil)
		return nil
	}
	text, err := os.ReadFile(s.cfg.Cache)
	if errors.Is(err, fs.ErrNotExist) {
		s.cfg.Wanted(nil)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last static pods of %s: %w", s.cfg.URL, err)
	}
	pods, err := s.decode(text)
	if err != nil {
		return fmt.Errorf("read the last static pods: %s: %w", s.cfg.Cache, err)
	}
	s.last = text
	s.cfg.Wanted(pods)
	return nil
}

func (s *WebSource) fetch(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("get static pods from %s: %w", s.cfg.URL, err)
	}
	for name, values := range s.cfg.Header { // any order: headers are a map
		for _, v := range values {
			req.Header.Add(name, v)
		}
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err // it names the URL
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", s.cfg.URL, res.Status)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", s.cfg.URL, err)
	case len(text) > maxManifest:
		return nil, fmt.Errorf("the answer of %s is larger than %d bytes", s.cfg.URL, maxManifest)
	}
	return append([]byte{}, text...), nil
}

// decode reads a Pod or a PodList in YAML or JSON. One invalid pod makes the whole list invalid
// (S14.14); an empty text has no pods (S14.11).
func (s *WebSource) decode(text []byte) ([]*corev1.Pod, error) {
	if len(text) == 0 {
		return nil, nil
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("%s: the answer is neither YAML nor JSON: %w", s.cfg.URL, err)
	}
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(doc, &list); err != nil {
		return nil, fmt.Errorf("%s: the answer is neither a Pod nor a PodList: %w", s.cfg.URL, err)
	}
	docs := list.Items
	if list.Kind != "PodList" && list.Kind != "List" {
		docs = []json.RawMessage{doc}
	}
	var pods []*corev1.Pod
	now := time.Now()
	for i, one := range docs {
		pod, err := makePod(withKind(one), origin{sourceURL, "url:" + s.cfg.URL}, s.cfg.Node, s.cfg.Complete, now)
		if err != nil {
			return nil, fmt.Errorf("%s: pod %d: %w", s.cfg.URL, i, err)
		}
		pods = append(pods, pod)
	}
	return pods, nil
}

// withKind adds the kind and apiVersion that the items of a PodList may omit.
func withKind(doc json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(doc, &fields) != nil || fields == nil || fields["kind"] != nil || fields["apiVersion"] != nil {
		return doc // null, which an empty document is, has no fields either
	}
	fields["kind"], fields["apiVersion"] = json.RawMessage(`"Pod"`), json.RawMessage(`"v1"`)
	out, err := json.Marshal(fields)
	if err != nil {
		return doc
	}
	return out
}
