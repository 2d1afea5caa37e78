package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
)

// A webhook's answer ends at a limit, which grows with the request; also one without a length, or compressed.
func TestWebhookAnswersAreLimited(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("n"))
		if err != nil {
			t.Error(err)
		}
		chunk := bytes.Repeat([]byte(" "), 1<<16)
		for n > 0 {
			part := chunk[:min(n, len(chunk))]
			if _, err := w.Write(part); err != nil {
				return // the client has read enough
			}
			n -= len(part)
		}
	}))
	defer server.Close()
	given := &restclient.Config{Host: server.URL}
	inner := &webhookutil.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*restclient.Config, error) { return given, nil },
		ClientConfigForServiceFunc: func(string, string, int) (*restclient.Config, error) {
			return nil, errors.New("no credentials")
		},
	}
	credentials := (&Server{}).credentials(inner)
	if _, err := credentials.ClientConfigForService("a", "b", 443); err == nil || err.Error() != "no credentials" {
		t.Errorf("credentials that cannot be read: %v", err)
	}
	config, err := credentials.ClientConfigFor("a")
	if err != nil {
		t.Fatal(err)
	}
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		request, answer int
		fits            bool
	}{
		{0, 0, true}, {0, leastAnswer, true}, {0, leastAnswer + 1, false}, {0, 3 * leastAnswer, false},
		{1000, leastAnswer + 1000*answerGrowth, true}, {1000, leastAnswer + 1000*answerGrowth + 1, false},
	} {
		answer, err := client.Post(server.URL+"?n="+strconv.Itoa(c.answer), "",
			strings.NewReader(strings.Repeat("x", c.request)))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		switch {
		case c.fits && (err != nil || n != int64(c.answer)):
			t.Errorf("%d bytes to a request of %d: %d, %v", c.answer, c.request, n, err)
		case !c.fits && (err == nil || !strings.Contains(err.Error(), "the answer is longer than")):
			t.Errorf("%d bytes to a request of %d: %d, %v", c.answer, c.request, n, err)
		case !c.fits && n != int64(leastAnswer+c.request*answerGrowth):
			t.Errorf("of %d bytes %d are read", c.answer, n)
		}
	}
	if given.WrapTransport != nil {
		t.Error("the configuration that was given has changed")
	}
}
