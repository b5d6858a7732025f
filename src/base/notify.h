/* What a service manager hears of this process (sd_notify(3)): that it serves, that it stops, that
 * it is alive. Without a manager that asked for it, nothing is said. Nothing waits and nothing
 * fails: a manager that does not hear is the manager's affair. */
#ifndef SL_BASE_NOTIFY_H
#define SL_BASE_NOTIFY_H

/* Whom to tell, of the variables NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Thread: main,
 * before any other. */
void sl_notify_open(void);
/* It serves; `status`: one line for who asks the manager. Thread: any. */
void sl_notify_ready(const char *status);
void sl_notify_stopping(void); /* Thread: any */
/* Called in each turn of the loop whose standstill the manager shall end: tells it about three
 * times within the time that it allows. Thread: any. */
void sl_notify_alive(void);

#endif
