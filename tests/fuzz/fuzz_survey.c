/* Any bytes as MEASURE and as COSTS: refused with a reason, or what says the same when it is
 * written and read again. */
#include "engine/measure/survey.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void question(sl_span in) {
    sl_json_doc *doc = NULL, *again = NULL;
    sl_survey_question q, r;
    sl_err err = {0};
    if (sl_survey_question_read(in, &doc, &q, &err) == SL_OK) {
        char *text = sl_survey_question_print(&q);
        SL_ASSERT(text);
        const sl_span back = {(const uint8_t *)text, strlen(text)};
        SL_ASSERT(sl_survey_question_read(back, &again, &r, &err) == SL_OK);
        SL_ASSERT(strcmp(q.model, r.model) == 0 && q.roles == r.roles && q.rows == r.rows);
        SL_ASSERT(q.keys == r.keys && q.threads == r.threads && q.kv_type == r.kv_type);
        sl_free(text);
    } else {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0);
    }
    sl_json_doc_free(doc);
    sl_json_doc_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_survey_answer a, b;
    sl_err err = {0};
    const sl_span in = {data, size};
    question(in);
    if (sl_survey_answer_read(in, &a, &err) != SL_OK) {
        SL_ASSERT(err.code != SL_OK && err.msg[0] != 0);
        return 0;
    }
    for (int k = 0; k < SL_COST_COUNT; k++)
        SL_ASSERT(a.costs.stage[k].row_us >= 0 && isfinite(a.costs.stage[k].row_us));
    SL_ASSERT(a.costs.link.alpha_us >= 0 && isfinite(a.costs.link.byte_us));
    char *text = sl_survey_answer_print(&a);
    SL_ASSERT(text);
    SL_ASSERT(sl_survey_answer_read((sl_span){(const uint8_t *)text, strlen(text)}, &b, &err) ==
              SL_OK);
    SL_ASSERT(a.rails == b.rails && strcmp(a.why, b.why) == 0);
    sl_free(text);
    return 0;
}
