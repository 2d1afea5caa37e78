package accounttokens

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/controllers/controllertest"
)

func TestUnusedTokens(t *testing.T) {
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	tracking := func(since string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trackingName},
			Data: map[string]string{trackingSince: since}}
	}
	old := func(labels map[string]string) *corev1.Secret {
		s := secret("robot", "1")
		s.CreationTimestamp = metav1.NewTime(now.AddDate(-3, 0, 0))
		s.Labels = labels
		return s
	}
	marked := func(used, invalid string) *corev1.Secret {
		return old(map[string]string{labelLastUsed: used, labelInvalidSince: invalid})
	}
	young := old(nil)
	young.CreationTimestamp = metav1.NewTime(now.AddDate(0, -11, 0))
	foreign := old(nil)
	foreign.Type = corev1.SecretTypeOpaque
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}}}
	for name, tc := range map[string]struct {
		since  string
		secret *corev1.Secret
		others []runtime.Object
		want   verdict
	}{
		"never used":              {"2025-06-13", old(nil), nil, invalidate},
		"not tracked for a year":  {"2025-06-15", old(nil), nil, keep},
		"no date of the tracking": {"soon", old(nil), nil, keep},
		"used a year ago": {"2020-01-01", old(map[string]string{labelLastUsed: "2025-06-14"}), nil,
			invalidate},
		"used later":                    {"2020-01-01", old(map[string]string{labelLastUsed: "2025-06-15"}), nil, keep},
		"used at no date":               {"2020-01-01", old(map[string]string{labelLastUsed: "often"}), nil, keep},
		"young":                         {"2020-01-01", young, nil, keep},
		"no token":                      {"2020-01-01", foreign, nil, keep},
		"a pod has it":                  {"2020-01-01", old(nil), []runtime.Object{pod}, keep},
		"invalid for less than a year":  {"2020-01-01", marked("2024-01-01", "2025-06-15"), nil, keep},
		"invalid since no date":         {"2020-01-01", marked("2024-01-01", "ever"), nil, invalidate},
		"not missed for a year":         {"2020-01-01", marked("2024-01-01", "2025-06-14"), nil, remove},
		"used after it was invalidated": {"2020-01-01", marked("2026-01-01", "2024-06-14"), nil, keep},
		"not missed, but a pod has it": {"2020-01-01", marked("2024-01-01", "2025-06-14"), []runtime.Object{pod},
			keep},
	} {
		t.Run(name, func(t *testing.T) {
			for _, account := range []*corev1.ServiceAccount{robot("1", "other", "s"), robot("1", "other"),
				robot("2", "s"), nil} {
				objects := append([]runtime.Object{tracking(tc.since), tc.secret.DeepCopy()}, tc.others...)
				want := keep // created manually, or for another account
				if account != nil {
					objects = append(objects, account)
					if account.UID == "1" && len(account.Secrets) == 2 {
						want = tc.want
					}
				}
				client := fake.NewClientset(objects...)
				if err := cleanUnused(t.Context(), client, client, now); err != nil {
					t.Fatal(err)
				}
				got := keep
				s, err := client.CoreV1().Secrets("ns").Get(t.Context(), "s", metav1.GetOptions{})
				switch {
				case apierrors.IsNotFound(err):
					got = remove
				case err != nil:
					t.Fatal(err)
				case s.Labels[labelInvalidSince] != tc.secret.Labels[labelInvalidSince]:
					got = invalidate
					if s.Labels[labelInvalidSince] != "2026-06-15" ||
						s.Labels[labelLastUsed] != tc.secret.Labels[labelLastUsed] {
						t.Errorf("labels %v", s.Labels)
					}
				}
				if got != want {
					t.Errorf("account %v: %d, want %d", account, got, want)
				}
			}
		})
	}
	client := fake.NewClientset(old(nil), robot("1", "s"))
	if err := cleanUnused(t.Context(), client, client, now); err != nil {
		t.Errorf("without the config map: %v", err)
	}
}

// A webhook refuses to change one Secret, as if it did not exist: the others are invalidated, and it is tried again.
func TestRefusedUnusedToken(t *testing.T) {
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	a, b := secret("robot", "1"), secret("robot", "1")
	a.Name, b.Name = "a", "b"
	a.CreationTimestamp = metav1.NewTime(now.AddDate(-3, 0, 0))
	b.CreationTimestamp = a.CreationTimestamp
	client := fake.NewClientset(a, b, robot("1", "a", "b"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trackingName},
		Data:       map[string]string{trackingSince: "2020-01-01"}})
	controllertest.FailOnce(client, "patch", "secrets", apierrors.NewNotFound(corev1.Resource("secrets"), "a"))
	if err := cleanUnused(t.Context(), client, client, now); !apierrors.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
	if s, err := client.CoreV1().Secrets("ns").Get(t.Context(), "b", metav1.GetOptions{}); err != nil ||
		s.Labels[labelInvalidSince] == "" {
		t.Errorf("the other one: %v %v", s, err)
	}
}
