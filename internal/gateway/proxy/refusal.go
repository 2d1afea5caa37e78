package proxy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Refuse answers a request that no backend answers. A call of gRPC gets a status of gRPC (GRPCRoute: a backend that is
// not valid is UNAVAILABLE): its client would take some of those of HTTP for UNKNOWN. took is how long the call took: a
// server may reset a call whose deadline has passed.
func Refuse(w http.ResponseWriter, r *http.Request, status int, took time.Duration) {
	text := http.StatusText(status)
	if !IsGRPC(r) {
		http.Error(w, text, status)
		return
	}
	code := grpcCode(status)
	if limit := grpcTimeout(r.Header.Get("Grpc-Timeout")); code == codes.Unavailable && limit > 0 && took >= limit {
		code = codes.DeadlineExceeded
	}
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(code)))
	h.Set("Grpc-Message", text)
	w.WriteHeader(http.StatusOK)
}

// IsGRPC reports whether a request is a call of gRPC. That of gRPC-Web has another form.
func IsGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/grpc")
	return ok && r.ProtoMajor == 2 && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

func grpcCode(status int) codes.Code {
	switch status {
	case http.StatusBadRequest:
		return codes.Internal // as clients take this status
	case http.StatusNotFound:
		return codes.Unimplemented
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	case http.StatusRequestEntityTooLarge:
		return codes.ResourceExhausted
	case http.StatusTooManyRequests, // as clients take this status
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		return codes.Unavailable
	}
	return codes.Unknown
}

// grpcTimeout reads a field Grpc-Timeout: at most eight digits, and a unit; 0: it is not valid.
func grpcTimeout(text string) time.Duration {
	if len(text) < 2 || len(text) > 9 {
		return 0
	}
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond,
		'u': time.Microsecond, 'n': time.Nanosecond}
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil {
		return 0
	}
	// 99,999,999 hours are more than a Duration holds.
	return time.Duration(min(float64(n)*float64(units[text[len(text)-1]]), 1<<62))
}
